//! How much memory the process has had at most.

/// The peak resident memory of this process in bytes, or `None` where the system does not say (it is asked for on
/// Linux only).
pub fn peak_rss_bytes() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// `VmHWM` of a `/proc/PID/status`, which the kernel gives in units of 1024 bytes.
fn parse(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_is_read_in_bytes() {
        assert_eq!(parse("Name:\tx\nVmHWM:\t   1234 kB\nVmRSS:\t 7 kB\n"), Some(1234 * 1024));
        assert_eq!(parse("Name:\tx\n"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn it_grows_with_what_is_used() {
        let before = peak_rss_bytes().unwrap();
        let block = vec![1u8; 64 << 20];
        assert!(block.iter().step_by(4096).all(|&byte| byte == 1));
        let after = peak_rss_bytes().unwrap();
        // Other tests of this process may have raised the mark before; at least the block is in it.
        assert!(after >= before && after >= 64 << 20, "{before} {after}");
    }
}
