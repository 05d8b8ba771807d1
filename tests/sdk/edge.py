"""A real nginx on a free port, in front of whatever its configuration names."""

import os
import shutil
import socket
import subprocess

from server import until

# Where Debian has it; not on everybody's path.
NGINX = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
CONFIG = """
daemon off; pid {folder}/nginx.pid; error_log stderr error; worker_processes 1; {user}
events {{ worker_connections 256; }}
http {{
    log_format short '$remote_addr "$request" $status $upstream_addr';
    access_log {folder}/access.log short;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;
    scgi_temp_path {folder}/s;
    {servers}
}}
"""


class Edge:
    """A started nginx."""

    def __init__(self, folder, servers):
        """`servers` is what stands in its `http`, with `{port}` where it listens."""
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # A worker of root's nginx is nobody, who must be able to write here.
        user = "user root;" if os.getuid() == 0 else ""
        config = folder / "nginx.conf"
        config.write_text(CONFIG.format(folder=folder, user=user, servers=servers.replace("{port}", str(port))))
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen([NGINX, "-e", "stderr", "-c", str(config)], stdin=subprocess.DEVNULL)

        def answers():
            assert self.process.poll() is None, "nginx ended"
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        assert until(answers), "nginx does not listen"

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=30)

    def log(self):
        """What was asked, with which status it was answered, and by whom, in the order of the answers' ends."""
        lines = [line.split('"') for line in (self.folder / "access.log").read_text().splitlines()]
        return [(request, *rest.split()) for _, request, rest in lines]

    def statuses(self):
        return [status for _, status, _ in self.log()]
