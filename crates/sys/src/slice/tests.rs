use super::*;

/// The two bytes, as memory that no thread has registered: the test is the kernel.
#[repr(C, align(4))]
struct Control([u8; 4]);

impl Control {
    fn begin(&mut self) -> bool {
        begin(self.0.as_mut_ptr())
    }

    fn end(&mut self) -> bool {
        end(self.0.as_mut_ptr())
    }

    fn is_clear(&self) -> bool {
        self.0 == [0; 4]
    }
}

const GRANTED: [u8; 4] = [0, 1, 0, 0];

#[test]
fn a_section_sets_the_request_and_clears_it() {
    let mut control = Control([0; 4]);
    assert!(control.begin());
    assert_eq!(control.0, [1, 0, 0, 0]);
    assert!(!control.end(), "nothing was granted");
    assert!(control.is_clear());
}

#[test]
fn a_grant_is_given_back_by_the_outer_section_only() {
    let mut control = Control([0; 4]);
    assert!(control.begin());
    assert!(!control.begin(), "the outer section has asked");
    control.0 = GRANTED;
    assert!(!control.begin(), "the outer section has an extension");
    assert_eq!(control.0, GRANTED);
    assert!(control.end());
}

#[test]
fn an_inner_section_asks_again_after_the_thread_was_scheduled_out() {
    let mut control = Control([0; 4]);
    assert!(control.begin());
    control.0 = [0; 4];
    assert!(control.begin());
    control.0 = GRANTED;
    assert!(control.end());
    // The kernel, in the system call.
    control.0 = [0; 4];
    assert!(!control.end(), "the outer section has nothing left");
    assert!(control.is_clear());
}

/// The bytes of this thread's own area.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn own_request() -> u8 {
    // SAFETY: inside this thread's area.
    unsafe { address(rseq::offset_of_area() + rseq::field::SLICE_CONTROL as isize).read_volatile() }
}

#[test]
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn a_thread_asks_if_and_only_if_the_kernel_has_extensions() {
    rseq::support().expect("the test machine has rseq");
    let enabled = enable_thread();
    println!("{enabled:?}");
    assert_eq!(enable_thread(), enabled, "the first answer stays");
    // Threads that have not enabled extensions ask too, which changes nothing for them.
    let asks = || {
        assert_eq!(own_request(), 0);
        let (outer, inner) = (ask(), ask());
        // A thread that is scheduled out here loses its request.
        let request = own_request();
        drop(inner);
        drop(outer);
        assert_eq!(own_request(), 0);
        request == 1
    };
    assert_eq!((0..100).any(|_| asks()), enabled.is_ok());
    std::thread::scope(|scope| scope.spawn(asks).join()).unwrap();
    if let Err(error) = enabled {
        assert!(error.to_string().starts_with("a time slice can't be extended: "), "{error}");
        assert_eq!(yields(), 0);
    }
}
