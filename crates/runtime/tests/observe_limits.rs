//! The observer in a process that may open no more files. The limit applies to the whole process, so this file has only
//! one test.
#![cfg(target_os = "linux")]

use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use warmcore_runtime::Runtime;
use warmcore_runtime::observe::{self, Observable};

/// A test that takes longer has failed.
const HANG: Duration = Duration::from_secs(60);

/// A socket that is not connected yet; connecting it needs no descriptor.
fn socket() -> OwnedFd {
    // SAFETY: no pointer is passed.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    assert!(fd >= 0);
    // SAFETY: the descriptor is new, and owned by nothing else.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn connect(socket: OwnedFd, to: &Observable) -> UnixStream {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(to.path.as_os_str().as_bytes()) {
        *to = *from as libc::c_char;
    }
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the address is read during the call.
    let done = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    let stream = UnixStream::from(socket);
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream
}

fn read(mut stream: UnixStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Sets the number of open files that the process may have, and returns the old one.
fn limit(files: libc::rlim_t) -> libc::rlim_t {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is written and read during the calls only.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        let old = std::mem::replace(&mut limit.rlim_cur, files);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        old
    }
}

#[test]
fn the_observer_answers_again_when_there_are_descriptors_again_and_ends_without() {
    let folder = tempfile::tempdir().unwrap();
    // SAFETY: this is the process's only test, and no other thread reads the environment now.
    unsafe { std::env::set_var("XDG_RUNTIME_DIR", folder.path()) };
    let runtime = Runtime::builder().worker_threads(1).observe(true).build().unwrap();
    let ours = |one: &Observable| one.pid == std::process::id();
    let one = observe::list().into_iter().find(ours).expect("it is listed");
    assert!(one.path.starts_with(folder.path()), "{}", one.path.display());
    let sockets = [socket(), socket(), socket()];
    let before = limit(0);
    // Some kernels reserve the descriptor for a thread that waits in `accept`, so the first client is answered.
    let mut streams = sockets.into_iter().map(|socket| connect(socket, &one));
    let (first, second) = (streams.next().unwrap(), streams.next().unwrap());
    second.set_nonblocking(true).unwrap();
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(2));
        let error = (&second).read(&mut [0]).expect_err("nothing can have been accepted");
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "it hung up");
    }
    second.set_nonblocking(false).unwrap();
    limit(before);
    assert!(read(first).ends_with("}\n") && read(second).ends_with("}\n"));
    assert!(one.ask().unwrap().ends_with("}\n"));

    // Ending the observer needs no descriptor either.
    let third = streams.next().unwrap();
    assert!(read(third).ends_with("}\n"));
    limit(0);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(runtime);
        tell.send(())
    });
    told.recv_timeout(HANG).expect("the runtime's end waits for ever");
    limit(before);
    assert!(!one.path.exists());
}
