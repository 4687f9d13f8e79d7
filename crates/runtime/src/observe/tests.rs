use super::*;
use crate::Runtime;
use crate::mock::workers;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::sync::mpsc::channel;
use tempfile::TempDir;

/// Longest duration of an exchange, even with a hostile peer.
const HANG: Duration = Duration::from_secs(60);

/// A user other than the one that runs the tests.
const NOBODY: u32 = 65534;

fn runtime(name: &str) -> Runtime {
    Runtime::builder().worker_threads(2).name(name).observe(false).build().unwrap()
}

/// A folder like `/tmp`, and this user's folder in it.
fn base() -> (TempDir, PathBuf) {
    let base = tempfile::tempdir().unwrap();
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let own = user_folder(base.path(), local::user());
    (base, own)
}

fn observer(base: &TempDir, runtime: &Runtime) -> Observer {
    Observer::new(&[base.path().to_owned()], runtime.shared.clone()).unwrap()
}

fn found(base: &TempDir) -> Vec<Observable> {
    list_in(&[base.path().to_owned()], local::user())
}

fn only(base: &TempDir) -> Observable {
    let found = found(base);
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().unwrap()
}

/// Runs `act` on a thread of another user. Returns `None` without running it if the test is not run by root.
fn as_nobody<R: Send>(act: impl FnOnce() -> R + Send) -> Option<R> {
    let become_nobody = || {
        let no_groups: *const libc::gid_t = std::ptr::null();
        // The system calls change this thread only; libc's wrappers would change the whole process.
        // SAFETY: no memory is passed; a list of no groups is not read.
        unsafe {
            libc::syscall(libc::SYS_setgroups, 0, no_groups) == 0
                && libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY) == 0
                && libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) == 0
        }
    };
    let act = || become_nobody().then(act);
    std::thread::scope(|scope| scope.spawn(act).join()).unwrap()
}

/// Runs `act` and returns its result. Fails if `act` has not returned after [`HANG`].
fn in_time<R: Send + 'static>(act: impl FnOnce() -> R + Send + 'static) -> R {
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(act()));
    told.recv_timeout(HANG).expect("it hangs")
}

/// Listens as a runtime does, and sends `part` to each client again and again until the client disconnects.
fn speak(path: &Path, part: Vec<u8>) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let part = part.clone();
            std::thread::spawn(move || while stream.write_all(&part).is_ok() {});
        }
    });
}

/// Fills the listener's backlog with connections.
fn fill(path: &Path) -> Vec<UnixStream> {
    std::iter::from_fn(|| local::connect(path).ok()).take(100_000).collect()
}

#[test]
fn a_client_gets_one_line_of_json_and_the_folder_is_the_users_alone() {
    let (base, own) = base();
    let runtime = runtime("a \"name\"\n\u{9b}");
    let observer = observer(&base, &runtime);
    let one = only(&base);
    assert_eq!((one.pid, one.runtime, one.user), (std::process::id(), 1, local::user()));
    assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
    let line = one.ask().unwrap();
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with("{\"schema\":3,\"what\":\"top\",\"pid\":"), "{line}");
    assert!(line.contains(r#""name":"a \"name\"\u000a\u009b""#), "{line}");
    for name in WorkerStats::NAMES {
        assert_eq!(line.matches(&format!("\"{name}\":")).count(), 2, "{name} in {line}");
    }
    assert!(line.ends_with("}],\"tenants\":[],\"task_groups\":[]}\n"), "{line}");
    drop(observer);
    assert_eq!(fs::read_dir(&own).unwrap().count(), 0, "something was left behind");
    one.ask().unwrap_err();
}

#[test]
fn each_tenant_is_told_with_what_it_used() {
    let runtime = runtime("a");
    let tenant = warmcore_tenant::Tenant::builder().name("a \"b\"").weight(300).build();
    let task = runtime.spawn_in(&tenant, std::future::pending::<()>());
    crate::mock::have_pended(&runtime.shared, 1);
    let line = line(&runtime.shared, clock::now());
    let (serial, said) = (tenant.serial(), line.split_once("\"tenants\":").unwrap().1);
    let (said, groups) = said.split_once(",\"task_groups\":").unwrap();
    let begin = format!(r#"[{{"name":"a \"b\"","serial":{serial},"weight":300,"num_alive_tasks":1,"polls":"#);
    assert!(said.starts_with(&begin) && said.ends_with("}]"), "{said}");
    assert!(
        groups.contains(&format!(
            r#""tenant":"a \"b\"","tenant_serial":{serial},"num_alive_tasks":1,"polls":0,"run_ns":0,"moves":0,"llc_moves":0}}]}}"#
        )),
        "{groups}"
    );
    task.abort();
}

#[test]
fn two_runtimes_of_a_process_have_a_socket_each_and_a_name_that_is_free_is_taken_again() {
    let (base, _) = base();
    let (a, b) = (runtime("a"), runtime("b"));
    let (first, second) = (observer(&base, &a), observer(&base, &b));
    let found = found(&base);
    assert_eq!(found.iter().map(|one| one.runtime).collect::<Vec<_>>(), [1, 2]);
    assert!(
        found[0].ask().unwrap().contains("\"name\":\"a\"")
            && found[1].ask().unwrap().contains("\"name\":\"b\"")
    );
    drop(first);
    let again = observer(&base, &b);
    assert!(again.path.ends_with(name(std::process::id(), 1)), "{}", again.path.display());
    drop((second, again));
}

#[test]
fn what_a_dead_process_left_is_not_listed_and_its_name_is_used_again() {
    let (base, own) = base();
    let runtime = runtime("a");
    private_folder(&[base.path().to_owned()]).unwrap();
    // A socket without a listener, and a plain file with such a name.
    drop(UnixListener::bind(own.join(name(std::process::id(), 1))).unwrap());
    fs::write(own.join(name(std::process::id(), 7)), "").unwrap();
    fs::write(own.join("warmcore-x.sock"), "").unwrap();
    let left = own.join(name(std::process::id(), 1));
    assert!(left.exists());
    assert_eq!(found(&base), []);
    assert!(!left.exists(), "nothing will ever listen there again");
    drop(UnixListener::bind(&left).unwrap());
    let _observer = observer(&base, &runtime);
    assert_eq!(only(&base).runtime, 1);
}

#[test]
fn a_client_that_takes_nothing_does_not_keep_the_others_or_the_end() {
    let (base, _) = base();
    let runtime = runtime("a");
    let observer = observer(&base, &runtime);
    let silent: Vec<_> = (0..8).map(|_| UnixStream::connect(&observer.path).unwrap()).collect();
    let line = only(&base).ask().unwrap();
    assert!(!line.is_empty());
    // The runtime sent the answer although the client was silent.
    let mut text = String::new();
    (&silent[0]).read_to_string(&mut text).unwrap();
    assert!(text.ends_with("]}\n"));
    drop(observer);
}

#[test]
fn the_next_base_is_used_where_one_is_not_there_or_could_be_renamed() {
    let (base, own) = base();
    let runtime = runtime("a");
    let folder = tempfile::tempdir().unwrap();
    let (gone, open) = (folder.path().join("gone"), folder.path().join("open"));
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let bases = [gone, open.clone()];
    let error = Observer::new(&bases, runtime.shared.clone()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("gone/warmcore-") && error.contains("may rename it"), "{error}");
    assert_eq!(fs::read_dir(&open).unwrap().count(), 0);
    let observer =
        Observer::new(&[&bases[..], &[base.path().into()]].concat(), runtime.shared.clone()).unwrap();
    assert!(observer.path.starts_with(&own), "{}", observer.path.display());
}

#[test]
fn a_folder_that_is_not_this_users_alone_is_not_used() {
    let runtime = runtime("a");
    let elsewhere = tempfile::tempdir().unwrap();
    let squats: [&dyn Fn(&Path); 3] = [
        &|own| {
            fs::create_dir(own).unwrap();
            fs::set_permissions(own, fs::Permissions::from_mode(0o755)).unwrap();
        },
        &|own| symlink(elsewhere.path(), own).unwrap(),
        &|own| fs::write(own, "").unwrap(),
    ];
    for squat in squats {
        let (base, own) = base();
        squat(&own);
        let error = Observer::new(&[base.path().into()], runtime.shared.clone()).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("remove it"), "{error}");
        assert_eq!(found(&base), []);
    }
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn a_process_that_never_ends_its_answer_or_takes_no_connection_holds_no_client_up() {
    let (base, own) = base();
    private_folder(&[base.path().to_owned()]).unwrap();
    let path = |runtime| own.join(name(std::process::id(), runtime));
    // Three hostile listeners: an answer without an end, an answer byte by byte, and a full backlog.
    speak(&path(1), vec![b'x'; 1 << 20]);
    let listener = UnixListener::bind(path(2)).unwrap();
    let slow = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().and_then(|_| listener.accept()).unwrap();
        while stream.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let _full = UnixListener::bind(path(3)).unwrap();
    let waiting = fill(&path(3));
    let base_path = base.path().to_owned();
    let found = in_time(move || list_in(&[base_path], local::user()));
    assert_eq!(found.iter().map(|one| one.runtime).collect::<Vec<_>>(), [1, 2, 3]);
    let errors = in_time(move || found.iter().map(|one| one.ask().unwrap_err().kind()).collect::<Vec<_>>());
    assert_eq!(errors[0], io::ErrorKind::InvalidData);
    assert!(matches!(errors[1], io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{errors:?}");
    assert_eq!(errors[2], io::ErrorKind::WouldBlock);
    slow.join().unwrap();
    // A runtime that searches for a free name does not wait for them either.
    let runtime = runtime("a");
    fs::remove_file(path(2)).unwrap();
    let _full = UnixListener::bind(path(2)).unwrap();
    let _waiting = fill(&path(2));
    let observer = in_time(move || (observer(&base, &runtime), base, runtime));
    assert!(observer.0.path.ends_with(name(std::process::id(), 4)), "{}", observer.0.path.display());
    drop(waiting);
}

#[test]
fn another_user_can_neither_look_nor_stand_in_the_way() {
    let (base, own) = base();
    let runtime = runtime("a");
    let observer = observer(&base, &runtime);
    let Some((looked, connected, made)) = as_nobody(|| {
        let connected = UnixStream::connect(&observer.path).map(|_| ());
        (fs::read_dir(&own).map(|_| ()), connected, fs::rename(&own, base.path().join("x")))
    }) else {
        return;
    };
    for refused in [looked, connected, made] {
        refused.unwrap_err();
    }
    drop((observer, base));

    // The other user has created the folder first, and in it and beside it a socket that accepts no connection.
    let (base, own) = self::base();
    let waiting = as_nobody(|| {
        DirBuilder::new().mode(0o700).create(&own).unwrap();
        let pid = std::process::id();
        let full = |path: PathBuf| (UnixListener::bind(&path).unwrap(), fill(&path));
        (full(base.path().join(name(pid, 1))), full(own.join(name(pid, 1))))
    });
    let (shared, bases) = (runtime.shared.clone(), vec![base.path().to_owned()]);
    let error = in_time(move || Observer::new(&bases, shared).map(|_| ()).unwrap_err());
    assert!(error.to_string().contains("remove it"), "{error}");
    assert_eq!(found(&base), []);
    drop(waiting);
}

#[test]
fn root_sees_another_users_runtime_and_believes_the_kernel_not_names() {
    let (base, own) = base();
    let runtime = runtime("a");
    let theirs = user_folder(base.path(), NOBODY);
    let Some((observer, waiting)) = as_nobody(|| {
        let observer = Observer::new(&[base.path().into()], runtime.shared.clone()).unwrap();
        // Process 1 does not belong to the other user. If a socket accepts no connection, its process is not known.
        speak(&theirs.join(name(1, 1)), b"{}\n".to_vec());
        let full = theirs.join(name(std::process::id(), 9));
        let listener = UnixListener::bind(&full).unwrap();
        (observer, (fill(&full), listener))
    }) else {
        return;
    };
    let one = only(&base);
    assert_eq!((one.user, one.pid, one.runtime), (NOBODY, std::process::id(), 1));
    assert!(one.ask().unwrap().contains("\"name\":\"a\""));
    assert!(theirs.join(name(1, 1)).exists() && !own.exists(), "what is another user's stays as it is");
    // A folder that is not named by its owner is ignored.
    fs::rename(&theirs, user_folder(base.path(), 12345)).unwrap();
    assert_eq!(found(&base), []);
    chown(user_folder(base.path(), 12345), Some(12345), None).unwrap();
    assert_eq!(found(&base), [], "the user who listens is not the folder's");
    drop((observer, waiting));
}

#[test]
fn names_are_read_as_they_are_written() {
    for (pid, runtime) in [(1, 1), (4_194_304, 2), (77, 64)] {
        assert_eq!(parse(&name(pid, runtime)), Some((pid, runtime)));
    }
    for wrong in ["warmcore-.sock", "warmcore-1", "warmcore-1.x.sock", "other-1.sock", "warmcore--1.sock"] {
        assert_eq!(parse(wrong), None, "{wrong}");
    }
    assert_eq!(quoted(&"x".repeat(1 << 20)).len(), NAME_MAX + 2);
    let mut group = TaskGroupMetrics::default();
    assert!(task_group_json(&group).starts_with(r#"{"name":null,"location":null,"tenant":null,"#));
    for long in ["é".repeat(NAME_MAX) + "/main.rs:7:5", "main.rs:7:5".to_owned()] {
        group.location = Some(long);
        assert!(task_group_json(&group).contains("main.rs:7:5\""), "{group:?}");
    }
}

/// The observer's thread is inside an answer until the test lets it end.
#[test]
fn an_observer_that_is_dropped_in_a_task_holds_no_worker_up() {
    let (base, _) = base();
    let (mocks, shared) = workers(1, 1);
    let gate = mocks[0].gate.lock().unwrap();
    let observer = Observer::new(&[base.path().to_owned()], Arc::new(shared)).unwrap();
    let is_shutdown = Arc::downgrade(&observer.is_shutdown);
    let client = local::connect(&observer.path).unwrap();
    while mocks[0].used.load(Relaxed) == 0 {
        std::thread::yield_now();
    }
    let tasks = runtime("drops");
    in_time(move || tasks.block_on(tasks.spawn(async move { drop(observer) })).unwrap());
    // The observer's thread still has `is_shutdown`, and ends after the task.
    assert!(is_shutdown.upgrade().is_some_and(|is_shutdown| is_shutdown.load(Relaxed)));
    drop((gate, client));
    while is_shutdown.strong_count() > 0 {
        std::thread::yield_now();
    }
}
