"""Stands in for systemd: keeps one service running, and its listening sockets open while it is not.

    service_manager.py FOLDER COMMAND...

What it does of sd_notify(3) and sd_listen_fds(3): READY, STATUS, MAINPID, FDSTORE, FDSTOREREMOVE, LISTEN_FDS. A
service that ends is started again at once (Restart=always). FOLDER/main.pid is the process that is the service,
FOLDER/ready how often it was ready, FOLDER/status what it said last of how things are. SIGTERM stops the service and
ends. The end of a process that is not the service any more means nothing. Standard library only."""

import array
import ctypes
import os
import signal
import socket
import sys
import threading
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


class Manager:
    def __init__(self, folder, command):
        self.folder, self.command = folder, command
        self.lock = threading.Lock()
        self.stored = {}  # name -> descriptor
        self.main, self.ready, self.stopping = 0, 0, False
        self.notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notices.bind(f"{folder}/notify")
        self.heard = threading.Event()

    def write(self, name, value):
        new = Path(self.folder, f"{name}.new")
        new.write_text(f"{value}\n")
        new.replace(Path(self.folder, name))

    def start(self):
        with self.lock:
            stored = dict(self.stored)
        pid = os.fork()
        if pid == 0:
            self.become(stored)
        self.main = pid
        self.write("main.pid", pid)

    def become(self, stored):
        """The child: descriptors from 3 on, and the words about them."""
        moved = [os.dup2(fd, 100 + number, inheritable=False) for number, fd in enumerate(stored.values())]
        for number, fd in enumerate(moved):
            os.dup2(fd, 3 + number, inheritable=True)
        environment = dict(os.environ, NOTIFY_SOCKET=f"{self.folder}/notify")
        if stored:
            environment |= {
                "LISTEN_PID": str(os.getpid()),
                "LISTEN_FDS": str(len(stored)),
                "LISTEN_FDNAMES": ":".join(stored),
            }
        os.execvpe(self.command[0], self.command, environment)

    def listen(self):
        while True:
            data, control, _, _ = self.notices.recvmsg(4096, socket.CMSG_SPACE(64))
            descriptors = array.array("i")
            for level, kind, payload in control:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptors.frombytes(payload)
            self.notice(dict(line.split("=", 1) for line in data.decode().splitlines()), list(descriptors))

    def notice(self, words, descriptors):
        name = words.get("FDNAME", "stored")
        with self.lock:
            if words.get("FDSTORE") == "1" and descriptors:
                same = name in self.stored and os.path.sameopenfile(self.stored[name], descriptors[0])
                if not same:
                    descriptors.append(self.stored.pop(name, -1))
                    self.stored[name] = descriptors.pop(0)
            if words.get("FDSTOREREMOVE") == "1":
                descriptors.append(self.stored.pop(name, -1))
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)
        if "MAINPID" in words:
            self.main = int(words["MAINPID"])
            self.write("main.pid", self.main)
        if "STATUS" in words:
            self.write("status", words["STATUS"])
        if "HEARD" in words:
            self.heard.set()
        if words.get("READY") == "1":
            self.ready += 1
            self.write("ready", self.ready)

    def hear_all(self):
        """What was said until now is known: who is the service now was said before the one of before has ended."""
        self.heard.clear()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
            own.sendto(b"HEARD=1", f"{self.folder}/notify")
        self.heard.wait(60)

    def stop(self, *_):
        self.stopping = True
        os.kill(self.main, signal.SIGTERM)

    def run(self):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        threading.Thread(target=self.listen, daemon=True).start()
        self.start()
        signal.signal(signal.SIGTERM, self.stop)
        while True:
            pid, status = os.wait()
            self.hear_all()
            if pid != self.main:
                continue
            code = os.waitstatus_to_exitcode(status)
            print(f"the service ({pid}) has ended with {code}", flush=True)
            if self.stopping:
                return code
            self.start()


def main():
    return Manager(sys.argv[1], sys.argv[2:]).run()


sys.exit(main())
