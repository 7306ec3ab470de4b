#!/usr/bin/python3
"""Publishes batches as an engine does, on libzmq: [topic, 8-byte number, payload].

usage: publisher.py ENDPOINT [--topic TOPIC]

Like vLLM it binds an endpoint with *, :: or ipc:// and connects to any other.
It says one line of JSON when it is ready, and one for each command on standard
input; it ends with its input.

  pub HEX          publish a payload
  flood N HEX      publish it N times
  seq N            the next number
  restart          close the socket, begin anew at number 0
"""
import argparse
import json
import sys
import time

import zmq


class Publisher:
    def __init__(self, endpoint, topic):
        self.context = zmq.Context()
        self.endpoint = endpoint
        self.topic = topic.encode()
        self.open()

    def open(self):
        self.next = 0
        self.socket = self.context.socket(zmq.PUB)
        self.socket.set_hwm(100_000)
        self.socket.linger = 0
        if any(mark in self.endpoint for mark in ("*", "::", "ipc://")):
            self.bind()
        else:
            self.socket.connect(self.endpoint)

    def bind(self):
        # After a restart libzmq may still be closing the socket before.
        deadline = time.monotonic() + 10
        while True:
            try:
                return self.socket.bind(self.endpoint)
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def publish(self, payload):
        self.socket.send_multipart((self.topic, self.next.to_bytes(8, "big"), payload))
        self.next += 1

    def command(self, name, *args):
        if name == "pub":
            self.publish(bytes.fromhex(args[0]))
        elif name == "flood":
            for _ in range(int(args[0])):
                self.publish(bytes.fromhex(args[1]))
        elif name == "seq":
            self.next = int(args[0])
        elif name == "restart":
            self.socket.close()
            self.open()
        else:
            raise ValueError(f"unknown command {name}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("endpoint")
    parser.add_argument("--topic", default="")
    args = parser.parse_args()
    publisher = Publisher(args.endpoint, args.topic)
    print(json.dumps({"ok": True}), flush=True)
    for line in sys.stdin:
        try:
            publisher.command(*line.split())
            answer = {"ok": True, "seq": publisher.next}
        except (ValueError, IndexError, zmq.ZMQError) as error:
            answer = {"ok": False, "error": str(error)}
        print(json.dumps(answer), flush=True)


main()
