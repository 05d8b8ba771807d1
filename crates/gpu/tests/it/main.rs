//! What is read of NVIDIA's management library, off a double of it: no GPU is here.

use gpu::double::Double;
use gpu::{Gpus, Memory, Process};

#[test]
fn every_gpu_is_told_with_who_computes_on_it_and_what_is_not_told_stays_unknown() {
    let folder = tempfile::tempdir().expect("a folder");
    let double = Double::new(folder.path()).expect("it is compiled");
    double.say("gpu 97 6000 8000\nprocess 41 5000\nprocess 42 -\ngpu - 0 16000\n").expect("it is written");
    let gpus = Gpus::open(Some(&double.library)).expect("it is opened");
    assert_eq!(gpus.driver().as_deref(), Some("999.0-double"));
    let looks = gpus.looks();
    let [first, second] = &looks[..] else { panic!("{looks:?}") };
    assert_eq!((first.index, first.uuid.as_deref(), first.name.as_deref()), (0, Some("GPU-double-0"), Some("double of a GPU")));
    assert_eq!((first.busy, first.memory), (Some(0.97), Some(Memory { total: 8000, used: 6000, free: 2000 })));
    assert_eq!(first.processes, [Process { pid: 41, used: Some(5000) }, Process { pid: 42, used: None }]);
    assert_eq!((second.index, second.busy, &*second.processes), (1, None, &[][..]), "one that is cut into instances");
    double.say("gpu 0 10 8000\n").expect("it is written");
    assert_eq!((gpus.busy(0), gpus.look(1)), (Some(0.0), None), "each look is of now");
}

#[test]
fn where_there_is_no_library_that_is_said_with_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("libnone.so");
    let why = Gpus::open(Some(&missing)).expect_err("it is not there");
    assert!(why.contains("libnone.so"), "{why}");
}
