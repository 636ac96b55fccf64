"""Stands in for a CLR: maps a file called libcoreclr.so and does as it is told with the socket that
a diagnostics client looks for.

usage: impostor.py FOLDER BEHAVIOUR [ARGUMENT]; TMPDIR is where the socket goes.
"""
import mmap, os, socket, struct, sys, time

folder, behaviour = sys.argv[1], sys.argv[2]
with open(os.path.join(folder, "libcoreclr.so"), "w+b") as library:
    library.truncate(4096)
    mapping = mmap.mmap(library.fileno(), 4096, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)

started = open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19]
path = os.path.join(os.environ["TMPDIR"], f"dotnet-diagnostic-{os.getpid()}-{started}-socket")


def message(payload, size=None, kind=(0xFF, 0)):
    size = 20 + len(payload) if size is None else size
    return b"DOTNET_IPC_V1\0" + struct.pack("<HBBH", size, *kind, 0) + payload


def text(value, length=None):
    data = value.encode("utf-16-le") + b"\0\0"
    return struct.pack("<I", len(data) // 2 if length is None else length) + data


info = struct.pack("<Q", os.getpid()) + b"\0" * 16
answers = {
    "small": message(b"", size=3),
    "promises": message(b"x", size=0xFFFF),
    "long-string": message(info + text("x", length=0x7FFFFFFF)),
    "huge-string": message(info + text("x", length=0xFFFFFFFF)),
    "noise": os.urandom(70000),
    "empty": b"",
    "binds-only": None,
}
if behaviour == "nothing":
    pass
elif behaviour == "link":
    os.symlink(sys.argv[3], path)
elif behaviour == "file":
    open(path, "w").close()
elif behaviour == "fifo":
    os.mkfifo(path)
else:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    if behaviour == "listens-late":
        print("running", flush=True)
        time.sleep(float(sys.argv[3]))
    listener.listen(1)
if behaviour != "listens-late":
    print("running", flush=True)
if behaviour in ("silent", "listens-late"):
    kept = []
    while True:
        kept.append(listener.accept())
elif behaviour == "never-accepts":
    # The queue of a listener that accepts no connection fills up.
    others = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(8)]
    for other in others:
        try:
            other.connect(path)
        except BlockingIOError:
            pass
    print("full", flush=True)
elif behaviour == "endless":
    while True:
        connection, _ = listener.accept()
        try:
            while True:
                connection.sendall(b"DOTNET_IPC_V1\0" * 1000)
        except OSError:
            pass
elif behaviour == "drips":
    while True:
        connection, _ = listener.accept()
        try:
            for byte in message(b"\0" * 1000):
                connection.sendall(bytes([byte]))
                time.sleep(0.05)
        except OSError:
            pass
elif behaviour in answers:
    while True:
        connection, _ = listener.accept()
        connection.recv(65536)
        try:
            connection.sendall(answers[behaviour])
        except OSError:
            pass
        connection.close()
while True:
    time.sleep(60)
