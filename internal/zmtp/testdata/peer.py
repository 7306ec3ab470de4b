#!/usr/bin/python3
"""A socket of libzmq.

usage: peer.py TYPE bind|connect ENDPOINT [--identity ID] [--heartbeat MS]

It says one line of JSON when it is ready (with its endpoint), and one for each
command on standard input; it ends with its input.

  send HEX,HEX,...     send a message of these frames
  flood N SIZE         send N messages: "kv@flood", 8 bytes of number, SIZE bytes, each
                       the number's last byte
  recv                 wait for a message; answers its frames in hex
  echo N               send the next N messages back where they came from

With --heartbeat libzmq asks its peers for signs of life so often, and hangs up on
those that give none within as long again.
"""
import argparse
import json
import sys

import zmq

PATIENCE = 20_000  # milliseconds


def received(socket):
    if not socket.poll(PATIENCE):
        raise TimeoutError("nothing came")
    return socket.recv_multipart()


def command(socket, name, *args):
    if name == "send":
        socket.send_multipart([bytes.fromhex(f) for f in args[0].split(",")])
    elif name == "flood":
        for n in range(int(args[0])):
            socket.send_multipart((b"kv@flood", n.to_bytes(8, "big"), bytes([n & 255]) * int(args[1])))
    elif name == "recv":
        return {"frames": [f.hex() for f in received(socket)]}
    elif name == "echo":
        for _ in range(int(args[0])):
            socket.send_multipart(received(socket))
    else:
        raise ValueError(f"unknown command {name}")
    return {}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("type")
    parser.add_argument("how", choices=["bind", "connect"])
    parser.add_argument("endpoint")
    parser.add_argument("--identity")
    parser.add_argument("--heartbeat", type=int, default=0)
    args = parser.parse_args()
    context = zmq.Context()
    context.linger = 0
    socket = context.socket(getattr(zmq, args.type))
    socket.set_hwm(0)  # no message is dropped
    socket.ipv6 = True
    if args.identity:
        socket.identity = args.identity.encode()
    if args.heartbeat:
        socket.heartbeat_ivl = args.heartbeat
    (socket.bind if args.how == "bind" else socket.connect)(args.endpoint)
    print(json.dumps({"ok": True, "endpoint": socket.last_endpoint.decode()}), flush=True)
    for line in sys.stdin:
        try:
            answer = {"ok": True, **command(socket, *line.split())}
        except (ValueError, TimeoutError, zmq.ZMQError) as error:
            answer = {"ok": False, "error": str(error)}
        print(json.dumps(answer), flush=True)


main()
