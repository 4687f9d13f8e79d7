use super::*;
use crate::Runtime;
use std::io::Read as _;

fn runtime(name: &str) -> Runtime {
    Runtime::builder().workers(2).name(name).observe(false).build().unwrap()
}

fn only(folder: &Path) -> Observable {
    let found = list_in(&[folder.to_owned()]);
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().unwrap()
}

#[test]
fn who_connects_gets_one_line_of_json_and_the_socket_is_the_users_alone() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = runtime("a \"name\"\n");
    let observer = Observer::new(folder.path(), runtime.shared.clone()).unwrap();
    let one = only(folder.path());
    assert_eq!((one.pid, one.runtime), (std::process::id(), 1));
    assert_eq!(fs::metadata(&one.path).unwrap().permissions().mode() & 0o777, 0o600);
    let line = one.ask().unwrap();
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with("{\"schema\":1,\"what\":\"top\",\"pid\":"), "{line}");
    assert!(line.contains(r#""name":"a \"name\"\u000a""#), "{line}");
    for name in WorkerStats::NAMES {
        assert_eq!(line.matches(&format!("\"{name}\":")).count(), 2, "{name} in {line}");
    }
    assert!(line.ends_with("}],\"tenants\":[]}\n"), "{line}");
    drop(observer);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something was left behind");
    one.ask().unwrap_err();
}

#[test]
fn each_tenant_is_told_with_what_it_used() {
    let runtime = runtime("a");
    let tenant = warmcore_tenant::Tenant::builder().name("a \"b\"").weight(300).build();
    let task = runtime.spawn_in(&tenant, std::future::pending::<()>());
    let line = line(&runtime.shared, clock::now());
    let (serial, said) = (tenant.serial(), line.split_once("\"tenants\":").unwrap().1);
    let begin = format!(r#"[{{"name":"a \"b\"","serial":{serial},"weight":300,"living":1,"polls":"#);
    assert!(said.starts_with(&begin) && said.ends_with("}]}\n"), "{said}");
    task.abort();
}

#[test]
fn two_runtimes_of_a_process_have_a_socket_each_and_a_name_that_is_free_is_taken_again() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (runtime("a"), runtime("b"));
    let first = Observer::new(folder.path(), a.shared.clone()).unwrap();
    let second = Observer::new(folder.path(), b.shared.clone()).unwrap();
    let found = list_in(&[folder.path().to_owned()]);
    assert_eq!(found.iter().map(|one| one.runtime).collect::<Vec<_>>(), [1, 2]);
    assert!(
        found[0].ask().unwrap().contains("\"name\":\"a\"")
            && found[1].ask().unwrap().contains("\"name\":\"b\"")
    );
    drop(first);
    let again = Observer::new(folder.path(), b.shared.clone()).unwrap();
    assert!(again.path.ends_with(name(std::process::id(), 1)), "{}", again.path.display());
    drop((second, again));
}

#[test]
fn what_a_dead_process_left_is_not_listed_and_its_name_is_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = runtime("a");
    // Nobody listens there any more; and a plain file with such a name.
    drop(UnixListener::bind(folder.path().join(name(std::process::id(), 1))).unwrap());
    fs::write(folder.path().join(name(std::process::id(), 7)), "").unwrap();
    fs::write(folder.path().join("warmcore-x.sock"), "").unwrap();
    let left = folder.path().join(name(std::process::id(), 1));
    assert!(left.exists());
    assert_eq!(list_in(&[folder.path().to_owned()]), []);
    assert!(!left.exists(), "nobody will ever listen there again");
    drop(UnixListener::bind(&left).unwrap());
    let _observer = Observer::new(folder.path(), runtime.shared.clone()).unwrap();
    assert_eq!(only(folder.path()).runtime, 1);
}

#[test]
fn who_connects_and_takes_nothing_does_not_keep_the_others_or_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = runtime("a");
    let observer = Observer::new(folder.path(), runtime.shared.clone()).unwrap();
    let silent: Vec<_> = (0..8).map(|_| UnixStream::connect(&observer.path).unwrap()).collect();
    let line = only(folder.path()).ask().unwrap();
    assert!(!line.is_empty());
    // It was told all the same.
    let mut text = String::new();
    (&silent[0]).read_to_string(&mut text).unwrap();
    assert!(text.ends_with("]}\n"));
    drop(observer);
}

#[test]
fn a_folder_that_is_not_there_is_an_error_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = runtime("a");
    let gone = folder.path().join("gone");
    assert!(Observer::new(&gone, runtime.shared.clone()).is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn names_are_read_as_they_are_written() {
    for (pid, runtime) in [(1, 1), (4_194_304, 2), (77, 64)] {
        assert_eq!(parse(&name(pid, runtime)), Some((pid, runtime)));
    }
    for wrong in ["warmcore-.sock", "warmcore-1", "warmcore-1.x.sock", "other-1.sock", "warmcore--1.sock"] {
        assert_eq!(parse(wrong), None, "{wrong}");
    }
}
