//! Two hosts and a switch between them, made of network namespaces, so that a test can pull a cable: no FIN, no RST, no ICMP, only silence.
//!
//! The cable is the client's, and it ends in the switch, so the server's own interface notices nothing. Needs `ip`, `unshare` and `nsenter`
//! (iproute2 and util-linux), and root or the right to make user namespaces: without root the test runs itself again inside one.
//!
//! Invariant: a namespace lives as long as its holder, and a holder ends with the test, whatever happens to that: its stdin is our pipe.

use std::fs::File;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The server's address in the lab.
pub const SERVER: &str = "10.77.0.1";
/// The client's.
pub const CLIENT: &str = "10.77.0.2";
/// Set in the copy of a test that runs in a user namespace.
const INSIDE: &str = "KVIT_TEST_IN_NAMESPACE";

/// Runs `test` where network namespaces can be made: here if this is root, else in a user namespace of its own.
pub fn in_lab(name: &str, test: impl FnOnce(&Lab)) {
    if rustix::process::geteuid().is_root() {
        return test(&Lab::new());
    }
    assert!(std::env::var_os(INSIDE).is_none(), "a user namespace was made and this test is not root in it");
    let own = std::env::current_exe().expect("a test knows its own file");
    let mut inside = Command::new("unshare");
    inside.args(["--user", "--map-root-user"]).arg(own).args([name, "--exact", "--nocapture", "--include-ignored"]);
    let status = inside.env(INSIDE, "1").status().expect("`unshare` (util-linux) can be started");
    assert!(
        status.success(),
        "{name}: {status}. This test pulls a cable between network namespaces: it needs root, or a system that lets users make user \
         namespaces (sysctl kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns); if those are there, see above"
    );
}

/// The hosts and the switch. Dropping it ends them.
pub struct Lab {
    server: Host,
    switch: Host,
    client: Host,
}

/// A network namespace and the process that holds it.
struct Host(Child);

impl Host {
    fn new() -> Host {
        let mut holder = Command::new("unshare");
        let child = holder.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let host = Host(child.expect("`unshare` (util-linux) can be started"));
        let own = std::fs::read_link("/proc/self/ns/net").expect("a process has a network namespace");
        let since = Instant::now();
        while std::fs::read_link(host.path()).is_ok_and(|ns| ns == own) {
            assert!(
                since.elapsed() < Duration::from_secs(10),
                "no network namespace was made: is this root, and does the system allow it?"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        host
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    fn ip(&self, words: &str) {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg("ip").args(words.split(' '));
        let output = command.output().expect("`nsenter` (util-linux) and `ip` (iproute2) can be started");
        assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Moves the calling thread, and what it starts from now on, to this host.
    fn enter(&self) {
        let file = File::open(self.path()).expect("the namespace is there");
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter it");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Lab {
    /// Builds it, and moves the calling thread to the server's host: a server that it starts is there.
    pub fn new() -> Lab {
        let lab = Lab { server: Host::new(), switch: Host::new(), client: Host::new() };
        lab.switch.ip("link add switch type bridge");
        lab.switch.ip("link set switch up");
        for (port, host, own, other) in [("s", &lab.server, (SERVER, 1), (CLIENT, 2)), ("c", &lab.client, (CLIENT, 2), (SERVER, 1))] {
            lab.switch.ip(&format!("link add {port} type veth peer name eth netns {}", host.0.id()));
            lab.switch.ip(&format!("link set {port} master switch up"));
            host.ip("link set lo up");
            host.ip(&format!("link set eth address 02:00:00:00:00:0{} up", own.1));
            host.ip(&format!("addr add {}/24 dev eth", own.0));
            // A host that is known for ever: a silence is not turned into an error by a neighbour that is asked for and does not answer.
            host.ip(&format!("neigh replace {} lladdr 02:00:00:00:00:0{} dev eth nud permanent", other.0, other.1));
        }
        lab.server.enter();
        lab
    }

    /// Lets the server's host forget where the client's is, so that it asks, and hears nothing.
    pub fn forget_neighbour(&self) {
        self.server.ip(&format!("neigh del {CLIENT} dev eth"));
    }

    /// Pulls the client's cable.
    pub fn cut(&self) {
        self.switch.ip("link set c down");
    }

    /// Puts it back.
    pub fn mend(&self) {
        self.switch.ip("link set c up");
    }

    /// Does something on the client's host: what it starts is there, and whom it connects to is met from there.
    pub fn on_client<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        let there = || {
            self.client.enter();
            what()
        };
        std::thread::scope(|scope| scope.spawn(there).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// What the server's host sends goes to a host that is not there, and what comes to it arrives; or no more.
    pub fn server_is_unheard(&self, unheard: bool) {
        let address = if unheard { 9 } else { 2 };
        self.server.ip(&format!("neigh replace {CLIENT} lladdr 02:00:00:00:00:0{address} dev eth nud permanent"));
    }

    /// The same of the client's.
    pub fn client_is_unheard(&self, unheard: bool) {
        let address = if unheard { 9 } else { 1 };
        self.client.ip(&format!("neigh replace {SERVER} lladdr 02:00:00:00:00:0{address} dev eth nud permanent"));
    }

    /// A connection from the client's host.
    pub fn connect(&self, port: u16) -> TcpStream {
        let dial = || {
            self.client.enter();
            let since = Instant::now();
            loop {
                match TcpStream::connect_timeout(
                    &(SERVER.parse::<std::net::IpAddr>().expect("an address"), port).into(),
                    Duration::from_secs(5),
                ) {
                    Ok(stream) => return stream,
                    Err(e) => assert!(since.elapsed() < Duration::from_secs(30), "the client cannot reach the server: {e}"),
                }
            }
        };
        let stream = std::thread::scope(|scope| scope.spawn(dial).join()).expect("the client connects");
        stream.set_nodelay(true).expect("nodelay can be set");
        stream
    }
}
