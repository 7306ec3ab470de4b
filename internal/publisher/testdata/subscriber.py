#!/usr/bin/python3
"""Reads what an engine publishes, on libzmq.

usage: subscriber.py ENDPOINT [--bind] [--topic PREFIX] [--replay ENDPOINT]

It says one line of JSON when it is ready (with its endpoint), and one for each
command on standard input; it ends with its input.

  recv N           wait for N messages; answers [topic, number, payload in hex] each
  replay START     ask for the batches from START on; answers [number, payload in hex] each
"""
import argparse
import json
import sys

import zmq

PATIENCE = 10_000  # milliseconds
END = b"\xff" * 8


def received(socket):
    if not socket.poll(PATIENCE):
        raise TimeoutError("nothing came")
    return socket.recv_multipart()


def recv(socket, inbox, count):
    while len(inbox) < count:
        inbox.append(received(socket))
    messages, inbox[:] = inbox[:count], inbox[count:]
    return [[topic.decode(), int.from_bytes(number, "big"), payload.hex()] for topic, number, payload in messages]


def replay(socket, start):
    socket.send_multipart((b"", start.to_bytes(8, "big")))
    messages = []
    while True:
        empty, number, payload = received(socket)
        if empty:
            raise ValueError(f"frame {empty} where an empty one must be")
        if number == END and not payload:
            return messages
        messages.append([int.from_bytes(number, "big"), payload.hex()])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("endpoint")
    parser.add_argument("--bind", action="store_true")
    parser.add_argument("--topic", default="")
    parser.add_argument("--replay")
    args = parser.parse_args()
    context = zmq.Context()
    context.linger = 0
    sub = context.socket(zmq.SUB)
    sub.set_hwm(100_000)
    sub.subscribe(args.topic)
    (sub.bind if args.bind else sub.connect)(args.endpoint)
    dealer = context.socket(zmq.DEALER)
    dealer.set_hwm(100_000)
    if args.replay:
        dealer.connect(args.replay)
    print(json.dumps({"ok": True, "endpoint": sub.last_endpoint.decode()}), flush=True)
    # libzmq subscribes anew on a new connection only when its socket is used, so
    # wait for messages and commands alike.
    poller = zmq.Poller()
    poller.register(sub, zmq.POLLIN)
    poller.register(sys.stdin, zmq.POLLIN)
    inbox = []
    while True:
        ready = dict(poller.poll())
        if sub in ready:
            inbox.append(sub.recv_multipart())
        if sys.stdin.fileno() not in ready:
            continue
        line = sys.stdin.readline()
        if not line:
            return
        try:
            command, number = line.split()
            if command == "recv":
                answer = {"ok": True, "messages": recv(sub, inbox, int(number))}
            elif command == "replay":
                answer = {"ok": True, "messages": replay(dealer, int(number))}
            else:
                raise ValueError(f"unknown command {command}")
        except (ValueError, TimeoutError, zmq.ZMQError) as error:
            answer = {"ok": False, "error": str(error)}
        print(json.dumps(answer), flush=True)


main()
