//! How much memory the process has had at most, and how much there is to have.

/// The peak resident memory of this process in bytes, or `None` where the system does not say (it is asked for on
/// Linux only).
pub fn peak_rss_bytes() -> Option<u64> {
    // A system without that file does not say, which is one of the answers.
    field(&std::fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// The bytes of memory that new work may take without pushing others out, or `None` where the system does not say.
pub fn available_bytes() -> Option<u64> {
    // A system without that file does not say, which is one of the answers.
    field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

/// A field of a `/proc` file, which the kernel gives in units of 1024 bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    // What is not in that form is not that field.
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_bytes() {
        assert_eq!(field("Name:\tx\nVmHWM:\t   1234 kB\nVmRSS:\t 7 kB\n", "VmHWM:"), Some(1234 * 1024));
        assert_eq!(field("Name:\tx\n", "VmHWM:"), None);
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
        assert!(available_bytes().unwrap() > 0);
    }
}
