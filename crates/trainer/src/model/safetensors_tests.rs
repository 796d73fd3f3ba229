//! What a broken safetensors file leads to, and that what we accept is what the reference crate accepts.

use proptest::prelude::*;
use serde_json::json;

use super::super::testing::{Tensor, safetensors, safetensors_with_header};
use super::*;

fn problem(file: &[u8]) -> String {
    match read_header(file) {
        Ok(tensors) => panic!("accepted: {tensors:?}"),
        Err(Problem::Duplicate(name)) => format!("duplicate {name}"),
        Err(Problem::Format(problem)) => problem,
    }
}

fn with_entry(entry: serde_json::Value, data: usize) -> Vec<u8> {
    safetensors_with_header(&json!({ "w": entry }).to_string(), &vec![0; data])
}

/// B132
#[test]
fn duplicate_keys_are_named() {
    let header = r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    assert_eq!(problem(&safetensors_with_header(header, &[0, 0])), "duplicate w");
}

/// B134
#[test]
fn a_range_that_does_not_fit_shape_and_type_is_refused() {
    let half = with_entry(json!({"dtype": "F32", "shape": [8, 24], "data_offsets": [0, 384]}), 384);
    assert_eq!(problem(&half), "w of shape [8, 24] and type F32 needs 768 bytes, its range has 384");
    for (offsets, expected) in [
        (json!([8, 4]), "data_offsets of w end before they begin: [8, 4]"),
        (json!([0]), "data_offsets of w are not two positions: [0]"),
        (json!([-1, 4]), "data_offsets of w are not two positions: [-1,4]"),
        (json!([0.0, 4.0]), "data_offsets of w are not two positions: [0.0,4.0]"),
        (json!("0"), "data_offsets of w are not two positions: \"0\""),
    ] {
        let file = with_entry(json!({"dtype": "F32", "shape": [1], "data_offsets": offsets}), 4);
        assert_eq!(problem(&file), expected);
    }
    let file = with_entry(json!({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}), 4);
    assert_eq!(problem(&file), "shape of w is not a list of sizes: [-1]");
    let file = with_entry(json!({"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}), 4);
    assert_eq!(problem(&file), "w has the unknown type F33");
    let file = with_entry(json!({"shape": [1], "data_offsets": [0, 4]}), 4);
    assert_eq!(problem(&file), "w has no dtype");
}

/// B135
#[test]
fn a_product_of_sizes_that_wraps_is_refused() {
    for shape in [json!([4_294_967_296u64, 4_294_967_296u64]), json!([9_223_372_036_854_775_808u64, 2])] {
        let file = with_entry(json!({"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}), 0);
        assert!(problem(&file).starts_with("the size of w overflows"), "{}", problem(&file));
    }
    let file = with_entry(json!({"dtype": "U8", "shape": vec![1; 200], "data_offsets": [0, 1]}), 1);
    assert_eq!(problem(&file), "w has 200 dimensions (limit 8)");
}

/// B137
#[test]
fn bytes_left_over_or_missing_are_counted() {
    let file = safetensors(&[Tensor::f32("w", &[2], [1.0, 2.0])]);
    let more = |count| [&file[..], &vec![0; count]].concat();
    assert_eq!(problem(&more(1)), "1 bytes are left over after the last tensor");
    assert_eq!(problem(&more(4096)), "4096 bytes are left over after the last tensor");
    assert_eq!(problem(&file[..file.len() - 1]), "w ends 1 bytes after the end of the file");
}

/// B139
#[test]
fn metadata_is_checked_and_otherwise_ignored() {
    let with = |metadata: &str, last: bool| {
        let tensor = r#""w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
        let header =
            if last { format!("{{{tensor},{metadata}}}") } else { format!("{{{metadata},{tensor}}}") };
        safetensors_with_header(&header, &[7])
    };
    for last in [false, true] {
        for good in [r#""__metadata__":{}"#, r#""__metadata__":null"#, r#""__metadata__":{"format":"pt"}"#] {
            assert_eq!(read_header(&with(good, last)).unwrap().len(), 1, "{good}");
        }
        assert_eq!(problem(&with(r#""__metadata__":{"a":1}"#, last)), "__metadata__.a is 1, not a string");
        assert_eq!(problem(&with(r#""__metadata__":[]"#, last)), "__metadata__ is not an object");
    }
}

/// B141: data at odd addresses, through the map and through plain reading.
#[test]
fn unaligned_data_reads_right_values() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("odd.safetensors");
    for padding in 0..8 {
        let header = json!({
            "odd": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
            "b": {"dtype": "BF16", "shape": [2], "data_offsets": [3, 7]},
            "h": {"dtype": "F16", "shape": [2], "data_offsets": [7, 11]},
            "f": {"dtype": "F32", "shape": [2], "data_offsets": [11, 19]},
            "d": {"dtype": "F64", "shape": [1], "data_offsets": [19, 27]},
        });
        let mut data = vec![9, 9, 9];
        data.extend(
            [half::bf16::from_f32(1.5), half::bf16::from_f32(-2.0)].iter().flat_map(|v| v.to_le_bytes()),
        );
        data.extend(
            [half::f16::from_f32(0.25), half::f16::from_f32(-3.0)].iter().flat_map(|v| v.to_le_bytes()),
        );
        data.extend([1.25f32, -7.0].iter().flat_map(|v| v.to_le_bytes()));
        data.extend(0.125f64.to_le_bytes());
        let header = header.to_string() + &" ".repeat(padding);
        std::fs::write(&path, safetensors_with_header(&header, &data)).unwrap();
        let file = SafetensorsFile::open(&path).unwrap();
        let read = |name: &str| {
            let entry = file.tensors().iter().find(|entry| entry.name == name).unwrap();
            assert_eq!(entry.range.start, 8 + header.len() + header_offset(name));
            file.read_f32(entry).unwrap()
        };
        assert_eq!(read("b"), [1.5, -2.0]);
        assert_eq!(read("h"), [0.25, -3.0]);
        assert_eq!(read("f"), [1.25, -7.0]);
        assert_eq!(read("d"), [0.125]);
    }
    fn header_offset(name: &str) -> usize {
        match name {
            "b" => 3,
            "h" => 7,
            "f" => 11,
            _ => 19,
        }
    }
}

#[test]
fn types_that_are_no_floats_and_bad_values_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.safetensors");
    let mut ints = Tensor::f32("ints", &[1], [0.0]);
    ints.dtype = "I32";
    let long = (0..3 << 20).map(|at| if at == 2_500_000 { f32::INFINITY } else { 1.0 });
    std::fs::write(&path, safetensors(&[ints, Tensor::f32("bad", &[3 << 20], long)])).unwrap();
    let file = SafetensorsFile::open(&path).unwrap();
    let message = |at: usize| file.read_f32(&file.tensors()[at]).unwrap_err().to_string();
    let shown = path.display();
    assert_eq!(message(0), format!("{shown}: ints has type I32; supported: F32, F16, BF16, F64"));
    assert_eq!(
        message(1),
        format!("{shown}: bad holds inf at index 2500000: the file is damaged or the model diverged")
    );
}

#[test]
fn headers_that_are_no_headers() {
    assert_eq!(problem(&[]), "0 bytes are too few for the length of the header");
    assert_eq!(problem(&[1, 0, 0, 0, 0, 0, 0]), "7 bytes are too few for the length of the header");
    assert_eq!(
        problem(&u64::MAX.to_le_bytes()),
        format!("the header would be {} bytes long (limit 100000000)", u64::MAX)
    );
    let mut short = 100u64.to_le_bytes().to_vec();
    short.push(b'{');
    assert_eq!(problem(&short), "the header should be 100 bytes long, but the file ends after 1 of them");
    assert!(problem(&safetensors_with_header("[]", &[])).starts_with("the header: invalid type: sequence"));
    assert!(problem(&safetensors_with_header("{} x", &[])).starts_with("the header: trailing characters"));
}

/// Whether the reference crate accepts a file.
fn accepted_by_reference(file: &[u8]) -> bool {
    ::safetensors::SafeTensors::deserialize(file).is_ok()
}

fn some_header() -> impl Strategy<Value = (String, usize)> {
    let dtype = prop::sample::select(vec!["F32", "F16", "BF16", "F64", "U8", "F4", "X9"]);
    let size = 0usize..4;
    let entry = (dtype, prop::collection::vec(size, 0..3), -1i64..3, -1i64..2);
    (prop::collection::vec(entry, 0..4), 0usize..3).prop_map(|(entries, extra)| {
        let mut header = serde_json::Map::new();
        let mut at = 0i64;
        for (number, (dtype, shape, gap, surplus)) in entries.into_iter().enumerate() {
            let bits: usize = shape.iter().product::<usize>() * bits(dtype).unwrap_or(8) as usize;
            // Mostly right: gap and surplus are 0 or below in most cases.
            let start = at + if gap == 2 { 1 } else { 0 };
            let end = start + bits as i64 / 8 + if surplus == 1 && gap == 1 { 1 } else { 0 };
            at = end;
            header.insert(
                format!("t{number}"),
                json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]}),
            );
        }
        let extra = if extra == 2 { 1 } else { 0 };
        (serde_json::Value::Object(header).to_string(), at as usize + extra)
    })
}

proptest! {
    #[test]
    fn accepts_what_the_reference_accepts((header, data) in some_header()) {
        let file = safetensors_with_header(&header, &vec![0; data]);
        prop_assert_eq!(read_header(&file).is_ok(), accepted_by_reference(&file), "{}", header);
    }

    #[test]
    fn damaged_files_are_refused_like_the_reference_and_never_panic(at in 0usize..400, value: u8, cut in 0usize..400) {
        let mut file = safetensors(&[
            Tensor::f32("first", &[2, 3], (0..6).map(|v| v as f32)),
            Tensor::f32("second", &[4], (0..4).map(|v| v as f32)),
        ]);
        let at = at % file.len();
        file[at] = value;
        // A changed letter of a key may make a duplicate of it, which only we refuse.
        let ours = read_header(&file);
        if !matches!(ours, Err(Problem::Duplicate(_))) {
            prop_assert_eq!(ours.is_ok(), accepted_by_reference(&file));
        }
        file.truncate(cut);
        prop_assert_eq!(read_header(&file).is_ok(), accepted_by_reference(&file));
    }
}
