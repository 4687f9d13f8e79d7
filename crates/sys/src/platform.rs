//! Platform: the kernel and the libc that this process really runs on.
//!
//! Model.   Strings for people and for reports; nothing decides by them.

/// The kernel's release, `6.18.44`.
#[cfg(unix)]
pub fn kernel() -> String {
    // SAFETY: uname fills the struct; all zero is a valid one.
    let name = unsafe {
        let mut name: libc::utsname = std::mem::zeroed();
        libc::uname(&mut name);
        name
    };
    let release: Vec<u8> = name.release.iter().take_while(|c| **c != 0).map(|c| c.to_ne_bytes()[0]).collect();
    String::from_utf8_lossy(&release).into_owned()
}

/// The kernel's release: unknown here.
#[cfg(not(unix))]
pub fn kernel() -> String {
    std::env::consts::OS.to_owned()
}

/// The libc and its version, `glibc 2.36`.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn libc() -> String {
    // SAFETY: returns a static string.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    format!("glibc {}", version.to_string_lossy())
}

/// The libc.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn libc() -> String {
    if cfg!(target_env = "musl") { "musl".to_owned() } else { std::env::consts::OS.to_owned() }
}

/// Whether a hypervisor runs this machine, and which, by its signature.
#[cfg(target_arch = "x86_64")]
pub fn hypervisor() -> Option<String> {
    use std::arch::x86_64::__cpuid;
    (__cpuid(1).ecx >> 31 & 1 == 1).then(|| {
        let leaf = __cpuid(0x4000_0000);
        let bytes: Vec<u8> = [leaf.ebx, leaf.ecx, leaf.edx].iter().flat_map(|r| r.to_le_bytes()).collect();
        match String::from_utf8_lossy(&bytes).trim_matches(['\0', ' ']) {
            "" => "unnamed",
            "KVMKVMKVM" => "KVM",
            "Microsoft Hv" => "Hyper-V",
            "VMwareVMware" => "VMware",
            "XenVMMXenVMM" => "Xen",
            other => other,
        }
        .to_owned()
    })
}

/// Whether a hypervisor runs this machine: only x86 tells.
#[cfg(not(target_arch = "x86_64"))]
pub fn hypervisor() -> Option<String> {
    None
}
