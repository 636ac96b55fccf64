"""on_off.py SOCKET: a server on a Unix socket with a thread for each connection. "GET /burns" is answered
after 100 ms of work outside of the interpreter's lock, "GET /waits" after a wait of 100 ms."""

import hashlib
import socket
import sys
import threading
import time


def burns():
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 20000)


def waits():
    time.sleep(0.1)


def serve(connection):
    while request := connection.recv(256):
        burns() if request.startswith(b"GET /burns") else waits()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(16)
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    threading.Thread(target=serve, args=(connection,), daemon=True).start()
