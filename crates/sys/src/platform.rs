//! Platform: names of the kernel, the libc and the hypervisor, for reports and messages.

/// Returns the kernel's release, for example `6.18.44`.
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

/// Returns the name of the operating system: its release is not read on this platform.
#[cfg(not(unix))]
pub fn kernel() -> String {
    std::env::consts::OS.to_owned()
}

/// Returns the name and version of the libc, for example `glibc 2.36`.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn libc() -> String {
    // SAFETY: returns a static string.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    format!("glibc {}", version.to_string_lossy())
}

/// Returns `musl` if that is the libc, otherwise the name of the operating system.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn libc() -> String {
    if cfg!(target_env = "musl") { "musl".to_owned() } else { std::env::consts::OS.to_owned() }
}

/// Returns the name of the hypervisor, by its CPUID signature, or `None` if CPUID reports no hypervisor.
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

/// Returns `None`: the hypervisor's name is read on x86-64 only.
#[cfg(not(target_arch = "x86_64"))]
pub fn hypervisor() -> Option<String> {
    None
}
