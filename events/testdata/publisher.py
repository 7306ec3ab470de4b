#!/usr/bin/python3
"""Publishes batches as an engine does, on libzmq: [topic, 8-byte number, payload].

usage: publisher.py ENDPOINT [--topic TOPIC] [--hwm N]
                    [--replay ENDPOINT] [--replay-topic] [--replay-hwm N] [--buffer N]

Like vLLM it binds an endpoint with *, :: or ipc:// and connects to any other;
the replay endpoint is bound. Between two batches, and when there are none, one
request on the ROUTER at that endpoint is answered: ["", start] with
["", number, payload] for each of the last batches from start on, and a last one
with number -1 and no payload. With --replay-topic there is the topic before
each number. Where the queue of the ROUTER (--replay-hwm, as in engines 1000
messages, libzmq's default) is full, libzmq drops answers without a word.

It says one line of JSON when it is ready, and one for each command on standard
input; it ends with its input.

  pub HEX          publish a payload
  flood N HEX      publish it N times
  pubfile PATH     publish payloads, each behind its length in 4 bytes
  skip HEX         keep a payload for replays, and publish nothing
  burn N           use up N numbers, as for batches that cannot be encoded
  seq N            the next number
  restart          close the sockets, forget all, begin anew at number 0
  stat             say how many requests and batches came to the replay socket
"""
import argparse
import collections
import json
import os
import sys
import time

import zmq

END = b"\xff" * 8


class Publisher:
    def __init__(self, args):
        self.args = args
        self.context = zmq.Context()
        self.topic = args.topic.encode()
        self.requests = self.replayed = 0
        self.open()

    def open(self):
        self.next = 0
        self.kept = collections.deque(maxlen=self.args.buffer)
        endpoint = self.args.endpoint
        self.socket = self.context.socket(zmq.PUB)
        self.socket.set_hwm(self.args.hwm)
        self.socket.linger = 0
        if any(mark in endpoint for mark in ("*", "::", "ipc://")):
            self.bind(self.socket, endpoint)
        else:
            self.socket.connect(endpoint)
        self.router = None
        if self.args.replay:
            self.router = self.context.socket(zmq.ROUTER)
            self.router.linger = 0
            self.router.sndhwm = self.args.replay_hwm
            self.bind(self.router, self.args.replay)

    def bind(self, socket, endpoint):
        # After a restart libzmq may still be closing the socket before.
        deadline = time.monotonic() + 10
        while True:
            try:
                return socket.bind(endpoint)
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def close(self):
        self.socket.close()
        if self.router:
            self.router.close()

    def publish(self, payload):
        self.answer()
        self.socket.send_multipart((self.topic, self.next.to_bytes(8, "big"), payload))
        self.keep(payload)

    def keep(self, payload):
        self.kept.append((self.next, payload))
        self.next += 1

    def answer(self):
        """Answers one request, if there is one."""
        if not self.router or not self.router.poll(0):
            return
        frames = self.router.recv_multipart()
        if len(frames) != 3 or frames[1] or len(frames[2]) != 8:
            return
        self.requests += 1
        peer, start = frames[0], int.from_bytes(frames[2], "big")
        head = (peer, b"", self.topic) if self.args.replay_topic else (peer, b"")
        for number, payload in self.kept:
            if number >= start:
                self.replayed += 1
                self.router.send_multipart((*head, number.to_bytes(8, "big"), payload))
        self.router.send_multipart((*head, END, b""))

    def command(self, name, *args):
        if name == "pub":
            self.publish(bytes.fromhex(args[0]))
        elif name == "flood":
            for _ in range(int(args[0])):
                self.publish(bytes.fromhex(args[1]))
        elif name == "pubfile":
            with open(args[0], "rb") as file:
                while size := file.read(4):
                    self.publish(file.read(int.from_bytes(size, "big")))
        elif name == "skip":
            self.keep(bytes.fromhex(args[0]))
        elif name == "burn":
            self.next += int(args[0])
        elif name == "seq":
            self.next = int(args[0])
        elif name == "restart":
            self.close()
            self.open()
        elif name != "stat":
            raise ValueError(f"unknown command {name}")

    def run(self):
        """Carries out commands and answers requests until the input ends."""
        rest = []  # of a line: some have ten megabytes
        while True:
            poller = zmq.Poller()
            poller.register(0, zmq.POLLIN)
            if self.router:
                poller.register(self.router, zmq.POLLIN)
            ready = dict(poller.poll())
            if 0 in ready:
                data = os.read(0, 1 << 20)
                if not data:
                    return
                *lines, last = data.split(b"\n")
                for line in lines:
                    self.obey(b"".join((*rest, line)).decode())
                    rest = []
                rest.append(last)
            self.answer()

    def obey(self, line):
        try:
            self.command(*line.split())
            answer = {"ok": True, "seq": self.next, "requests": self.requests, "replayed": self.replayed}
        except (ValueError, IndexError, OSError, zmq.ZMQError) as error:
            answer = {"ok": False, "error": str(error)}
        print(json.dumps(answer), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("endpoint")
    parser.add_argument("--topic", default="")
    parser.add_argument("--hwm", type=int, default=100_000)
    parser.add_argument("--replay")
    parser.add_argument("--replay-topic", action="store_true")
    parser.add_argument("--replay-hwm", type=int, default=1000)
    parser.add_argument("--buffer", type=int, default=10_000)
    publisher = Publisher(parser.parse_args())
    print(json.dumps({"ok": True}), flush=True)
    publisher.run()


main()
