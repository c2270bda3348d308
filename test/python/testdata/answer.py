"""Answers calls on the UNIX socket that it is given, until its standard input ends."""

import socket
import sys
import threading

import sigmaos


def fail(call):
    raise sigmaos.NoSpace("it is full", "/k", "buy more")


server = sigmaos.CallServer()
server.handle("kv/Echo", lambda call: call.arg)
server.handle("kv/Fail", fail)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)


def serve():
    while True:
        server.serve_socket(listener.accept()[0])


threading.Thread(target=serve, daemon=True).start()
sys.stdin.read()
server.close()
