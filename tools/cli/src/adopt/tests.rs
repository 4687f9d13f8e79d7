//! Tests of the parts that work on texts. `tests/adopt.rs` has those with Cargo.

use super::*;
use prepare::Files;
use std::collections::BTreeMap;
use toml_edit::DocumentMut;

/// Checks that the section of docs/json.md agrees with what is written.
#[test]
fn the_schema_in_the_docs_is_the_schema() {
    let docs = include_str!("../../../../docs/json.md");
    let section = docs.split_once("\n## adopt\n").expect("a section for adopt").1;
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let mut told: Vec<&str> = rows.map(|(field, _)| field).collect();
    let serde_json::Value::Object(fields) = serde_json::to_value(Outcome::default()).unwrap() else {
        panic!()
    };
    let mut real: Vec<&str> = fields.keys().map(String::as_str).collect();
    told.sort_unstable();
    real.sort_unstable();
    assert_eq!(told, real);
}

#[test]
fn lines_that_are_added_and_removed_leave_every_other_byte() {
    let texts = [
        "[package]\nname = 'a' # its name\n\n[dependencies]\ntokio=\"1\"\n# end\n",
        "[package]\nname = 'a'\n[dependencies]\ntokio = '1'",
        "[patch.crates-io]\n# a fix\nb = { path = \"b\" }   # until 2.1\n\n[dependencies]\ntokio = '1'\n",
        "patch = { crates-io = { b = { path = \"b\" } } }\n[dependencies]\ntokio = '1'\n",
        "[patch]\ncrates-io.b = { path = \"b\" }\n",
        "[patch.crates-io.b]\npath = \"b\"\n\n[dependencies]\ntokio = '1'\n",
        "[patch]\n\n[dependencies]\ntokio = '1'\n",
        "[patch.\"https://example.com/c\"]\nc = { path = \"c\" }\n",
        "[dependencies]\r\ntokio = '1'\r\n\r\n[features]\r\n",
    ];
    for text in texts {
        let mut manifest = Manifest::parse(text).unwrap();
        assert_eq!(manifest.patch("tokio"), Patch::Missing);
        manifest.add("tokio", "tokio").unwrap();
        manifest.add("warmcore", "warmcore").unwrap();
        let added = manifest.text();
        let paths: DocumentMut = added.parse().unwrap();
        let path = |name: &str| paths["patch"]["crates-io"][name]["path"].as_str().unwrap().to_owned();
        assert_eq!(path("tokio"), format!("{FOLDER}/tokio"), "{added}");
        assert_eq!(path("warmcore"), format!("{FOLDER}/warmcore"), "{added}");
        assert_eq!(added.replace("\r\n", "").contains('\n'), !text.contains("\r\n"), "{added:?}");
        for line in text.lines() {
            assert!(added.contains(line.trim_end_matches(" }")), "{added}");
        }

        let mut manifest = Manifest::parse(&added).unwrap();
        assert_eq!(manifest.patch("tokio"), Patch::Ours);
        assert_eq!(manifest.remove().unwrap(), 2);
        assert_eq!(manifest.text().trim_end(), text.trim_end());
        assert_eq!(manifest.remove().unwrap(), 0);
    }
}

#[test]
fn a_patch_of_the_user_is_foreign() {
    for line in
        ["tokio = { path = \"../tokio\" }", "t = { git = \"https://example.com\", package = \"tokio\" }"]
    {
        let manifest = Manifest::parse(&format!("[patch.crates-io]\n{line}\n")).unwrap();
        let Patch::Foreign(told) = manifest.patch("tokio") else { panic!("{line}") };
        assert!(line.contains(&told), "{told}");
    }
}

const LOCK: &str = r#"
version = 4
[[package]]
name = "a"
version = "1.0.0"
dependencies = ["tokio 0.2.25", "b"]
[[package]]
name = "b"
version = "1.0.0"
dependencies = ["tokio 1.54.1 (registry+https://github.com/rust-lang/crates.io-index)"]
[[package]]
name = "tokio"
version = "0.2.25"
source = "registry+https://github.com/rust-lang/crates.io-index"
[[package]]
name = "tokio"
version = "1.54.1"
source = "registry+https://github.com/rust-lang/crates.io-index"
"#;

#[test]
fn dependents_are_those_of_the_version() {
    let lock = Lock::parse(LOCK).unwrap();
    let told: Vec<String> = lock.tokios().iter().map(|it| lock.dependents(it, 8)).collect();
    assert_eq!(told, ["a", "b"]);
    assert_eq!(lock.dependents(lock.tokios()[0], 0), " and 1 more");
}

#[test]
fn each_tested_version_is_wanted_and_its_neighbours_are_not() {
    let lock = |version: &str| {
        let text = LOCK.split("[[package]]").last().unwrap().replace("1.54.1", version);
        Lock::parse(&format!("[[package]]{text}")).unwrap()
    };
    for minor in MINORS {
        assert_eq!(wanted(&lock(&format!("1.{minor}.3")), false).unwrap(), format!("=1.{minor}.3"));
    }
    for minor in [MINORS.start() - 1, MINORS.end() + 1] {
        let error = wanted(&lock(&format!("1.{minor}.0")), false).unwrap_err().to_string();
        assert!(error.contains("cargo update tokio"), "{error}");
    }
}

/// A package tokio in a temporary folder.
fn package(folder: &Path) -> Package {
    let manifest = r#"
[package]
name = "tokio"
version = "1.53.2"
[lib]
name = "tokio"
path = "src/lib.rs"
[[test]]
name = "rt"
path = "tests/rt.rs"
[features]
default = []
full = ["rt-multi-thread", "net"]
net = ["libc", "mio/net"]
rt-multi-thread = []
[dependencies.mio]
version = "1"
optional = true
[dev-dependencies.loom]
version = "0.7"
[target."cfg(unix)".dependencies.libc]
version = "0.2.168"
optional = true
[target."cfg(unix)".dev-dependencies.nix]
version = "0.3"
"#;
    for (name, text) in
        [("Cargo.toml", manifest), ("src/lib.rs", "// real\n"), ("tests/rt.rs", ""), (".cargo-ok", "")]
    {
        fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
        fs::write(folder.join(name), text).unwrap();
    }
    let feature =
        |name: &str, parts: &[&str]| (name.to_owned(), parts.iter().map(|it| (*it).to_owned()).collect());
    Package {
        name: "tokio".into(),
        version: "1.53.2".into(),
        source: Some(CRATES_IO[0].into()),
        manifest_path: folder.join("Cargo.toml"),
        features: BTreeMap::from([
            feature("default", &[]),
            feature("full", &["rt-multi-thread", "net"]),
            feature("libc", &["dep:libc"]),
            feature("mio", &["dep:mio"]),
            feature("net", &["libc", "mio/net"]),
            feature("rt-multi-thread", &[]),
        ]),
        rust_version: None,
        dependencies: Vec::new(),
    }
}

fn parsed(files: &Files, name: &str) -> DocumentMut {
    str::from_utf8(&files[name]).unwrap().parse().unwrap()
}

#[test]
fn a_prepared_folder_stands_alone() {
    let folder = tempfile::tempdir().unwrap();
    let files = prepare::files(&package(folder.path())).unwrap();
    let manifests: Vec<&String> = files.keys().filter(|name| name.ends_with("/Cargo.toml")).collect();
    assert!(manifests.len() > 12, "{manifests:?}");
    for name in manifests {
        let manifest = parsed(&files, name);
        let text = manifest.to_string();
        // Nothing is inherited, from tests or of a workspace.
        assert!(!text.contains("workspace") && !text.contains("dev-dependencies"), "{name}:\n{text}");
        for line in text.lines().filter(|line| line.contains("path = \"../")) {
            let path = line.split("path = \"../").nth(1).unwrap().split('"').next().unwrap();
            assert!(files.contains_key(&format!("{path}/Cargo.toml")), "{name}: {line}");
        }
        // The real tokio is below the driver and the face alone, and under no crate that the face depends on.
        let has_registry_tokio =
            text.lines().any(|line| line.starts_with("tokio = {") && !line.contains("tokio-real"));
        assert!(
            !has_registry_tokio || name.starts_with("http/") || name.starts_with("warmcore/"),
            "{name}:\n{text}"
        );
    }
    assert!(!files.keys().any(|name| name.contains("/tests/") || name.contains("/examples/")));
}

#[test]
fn the_copy_of_tokio_has_another_name_and_the_face_its_features() {
    let folder = tempfile::tempdir().unwrap();
    let files = prepare::files(&package(folder.path())).unwrap();
    let real = parsed(&files, "tokio-real/Cargo.toml");
    assert_eq!(real["package"]["name"].as_str(), Some("tokio-real"));
    assert_eq!(real["lib"]["name"].as_str(), Some("tokio"));
    assert_eq!(real["dependencies"]["mio"]["optional"].as_bool(), Some(true));
    assert_eq!(files["tokio-real/src/lib.rs"], b"// real\n");
    assert!(!files.contains_key("tokio-real/tests/rt.rs") && !files.contains_key("tokio-real/.cargo-ok"));

    let face = parsed(&files, "tokio/Cargo.toml");
    assert_eq!(face["package"]["version"].as_str(), Some("1.53.2"));
    assert_eq!(face["dependencies"]["real"]["package"].as_str(), Some("tokio-real"));
    let feature = |name: &str| -> Vec<String> {
        let list = face["features"][name].as_array().unwrap();
        list.iter().map(|part| part.as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(feature("libc"), ["real/libc"]);
    assert_eq!(feature("default"), ["real/default"]);
    for part in ["real/full", "rt-multi-thread", "net"] {
        assert!(feature("full").contains(&part.to_owned()), "{:?}", feature("full"));
    }
    for part in ["real/rt-multi-thread", "dep:warmcore-runtime"] {
        assert!(feature("rt-multi-thread").contains(&part.to_owned()), "{:?}", feature("rt-multi-thread"));
    }
}
