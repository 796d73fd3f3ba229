//! The tile loop, written once for every width of vector: [`tiles`] expands to the functions of one instruction set.

use super::Tile;

/// Rows of B that are asked for before their use.
pub(super) const AHEAD: usize = 8;

/// Joins the sums of a tile, `stride` apart, to its part of C, where that is narrower than the sums or transposed.
#[cold]
#[inline(never)]
pub(super) fn store_edge(sums: &[f32], stride: usize, tile: &mut Tile<'_>) {
    let (alpha, beta, cols) = (tile.alpha, tile.beta, tile.c.cols());
    for (row, sums) in sums.chunks(stride).enumerate() {
        (0..cols).for_each(|col| tile.c.update(row, col, sums[col], alpha, beta));
    }
}

/// The `tile_of` for the tile's rows.
macro_rules! match_rows {
    ($tile:ident, $vectors:tt, $copy:literal, [$($rows:literal)*]) => {
        match $tile.c.rows() {
            $($rows => tile_of::<$rows, { $vectors }, $copy>($tile),)*
            rows => unreachable!("check_tile allows no {rows} rows"),
        }
    };
}
pub(super) use match_rows;

/// `unsafe fn tile(Tile)`, which chooses `tile_of` for the tile's size, with the given intrinsics. The file that
/// expands it has the constants LANES and NR, and the intrinsics in scope.
macro_rules! tiles {
    (
        $features:literal, rows: $rows:tt, vectors: [$($vectors:literal)*],
        zero: $zero:ident, set: $set:ident, load: $load:ident, store: $store:ident, mul: $mul:ident,
        fmadd: $fmadd:ident
    ) => {
        /// # Safety
        /// - the CPU has the instructions;
        /// - `tile` satisfies `check_tile`.
        #[target_feature(enable = $features)]
        unsafe fn tile(tile: Tile<'_>) {
            // SAFETY: the size is that of the tile.
            unsafe {
                match (tile.copy.is_some(), tile.c.cols().div_ceil(LANES)) {
                    (true, _) => match_rows!(tile, (NR / LANES), true, $rows),
                    $((false, $vectors) => match_rows!(tile, $vectors, false, $rows),)*
                    (false, vectors) => unreachable!("check_tile allows no {vectors} vectors"),
                }
            }
        }

        /// # Safety
        /// - the CPU has the instructions;
        /// - `tile` satisfies `check_tile`, has `ROWS` rows, and its columns need `VECTORS` vectors;
        /// - with `COPY`, it has somewhere to copy to.
        // Not inlined: in one large function the compiler leaves the sums in memory.
        #[inline(never)]
        #[target_feature(enable = $features)]
        unsafe fn tile_of<const ROWS: usize, const VECTORS: usize, const COPY: bool>(mut tile: Tile<'_>) {
            let mut sums = [[$zero(); VECTORS]; ROWS];
            let (mut a, mut b) = (tile.a.as_ptr(), tile.b.as_ptr());
            let b_stride = tile.b_stride;
            let mut copy = tile.copy.as_mut().map_or(std::ptr::null_mut(), |copy| copy.as_mut_ptr());
            let [mut near, mut far] = tile.ahead;
            let mut own = tile.c.origin();
            let step = (tile.depth / near.count.max(far.count).max(ROWS)).max(1);
            let mut left = tile.depth;
            while left > 0 {
                for run in [&mut near, &mut far] {
                    if run.count > 0 {
                        for line in 0..LINES {
                            _mm_prefetch::<_MM_HINT_T1>(run.start.wrapping_add(line * 16).cast());
                        }
                        run.start = run.start.wrapping_add(run.stride);
                        run.count -= 1;
                    }
                }
                for line in 0..LINES {
                    _mm_prefetch::<_MM_HINT_T0>(own.wrapping_add(line * 16).cast());
                }
                own = own.wrapping_add(tile.c.row_stride());
                let run = step.min(left);
                left -= run;
                for _ in 0..run {
                    let mut row_of_b = [$zero(); VECTORS];
                    for v in 0..VECTORS {
                        // SAFETY: row p of b is readable for whole vectors up to its columns (`check_tile`).
                        row_of_b[v] = unsafe { $load(b.add(v * LANES)) };
                        if COPY {
                            // SAFETY: row p of the copy has NR elements (`check_tile`).
                            unsafe { $store(copy.add(v * LANES), row_of_b[v]) };
                        }
                        // A hint, with no access, so it may point beyond the end.
                        _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(AHEAD * b_stride + v * LANES).cast());
                    }
                    for r in 0..ROWS {
                        // SAFETY: element (r, p) of packed A, r < ROWS, p < depth (`check_tile`).
                        let x = $set(unsafe { *a.add(r * A_STRIDE) });
                        for v in 0..VECTORS {
                            sums[r][v] = $fmadd(x, row_of_b[v], sums[r][v]);
                        }
                    }
                    a = a.wrapping_add(1);
                    b = b.wrapping_add(b_stride);
                    copy = copy.wrapping_add(NR);
                }
            }
            let (alpha, beta, cols) = (tile.alpha, tile.beta, tile.c.cols());
            let (row_stride, col_stride) = (tile.c.row_stride(), tile.c.col_stride());
            let c = tile.c.origin();
            if col_stride == 1 && cols == VECTORS * LANES {
                let (alpha_v, beta_v) = ($set(alpha), $set(beta));
                for r in 0..ROWS {
                    for v in 0..VECTORS {
                        // SAFETY: all columns of row r of the block, which is ours alone.
                        unsafe {
                            let at = c.add(r * row_stride + v * LANES);
                            let value = if beta == 0.0 {
                                $mul(alpha_v, sums[r][v])
                            } else {
                                $fmadd(sums[r][v], alpha_v, $mul(beta_v, $load(at)))
                            };
                            $store(at, value);
                        }
                    }
                }
            } else {
                let mut rows = [[0f32; NR]; ROWS];
                for r in 0..ROWS {
                    for v in 0..VECTORS {
                        // SAFETY: VECTORS * LANES <= NR elements.
                        unsafe { $store(rows[r].as_mut_ptr().add(v * LANES), sums[r][v]) };
                    }
                }
                store_edge(rows.as_flattened(), NR, &mut tile);
            }
        }
    };
}
pub(super) use tiles;
