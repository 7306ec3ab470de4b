/* The ends of the subscriber benchmark that are not ours, on libzmq.
 *
 *   zmq publish SIZE COUNT        libzmq's publisher
 *   zmq blast SIZE COUNT          a publisher on a plain socket: the same bytes with
 *                                 less work, so that it is faster than its readers
 *   zmq subscribe ENDPOINT COUNT  libzmq's subscriber
 *   zmq drain PORT                a reader that throws away what it gets
 *
 * A publisher prints its port, waits for one subscriber, and sends COUNT messages
 * as an engine does: a topic, 8 bytes of number, SIZE bytes that differ from one
 * message to the next. It never drops one. A reader prints the seconds that
 * passed and the CPU seconds that it took from its first message (drain: from its
 * first bytes) to its last.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

static const char topic[] = "kv@10.0.0.7:8000@org/model";
enum { TOPIC = sizeof topic - 1, HWM = 1000000 };

static void must(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "%s: %s\n", what, zmq_strerror(errno));
        exit(1);
    }
}

struct clock { double wall, cpu; };

static struct clock now(void)
{
    struct timespec t;
    struct rusage r;
    clock_gettime(CLOCK_MONOTONIC, &t);
    getrusage(RUSAGE_SELF, &r);
    return (struct clock){t.tv_sec + t.tv_nsec / 1e9,
                          r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6};
}

static void report(struct clock from)
{
    struct clock to = now();
    printf("%.6f %.6f\n", to.wall - from.wall, to.cpu - from.cpu);
}

static void number(unsigned char *at, uint64_t n)
{
    for (int i = 7; i >= 0; i--, n >>= 8)
        at[i] = n;
}

/* What a publisher sends: a window into this that moves on by a step a message. */
static unsigned char *noise(size_t size)
{
    unsigned char *b = malloc(2 * size);
    uint64_t x = 88172645463325252u;
    must(b != NULL, "malloc");
    for (size_t i = 0; i < 2 * size; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        b[i] = x;
    }
    return b;
}

static void publish(size_t size, uint64_t count)
{
    void *context = zmq_ctx_new(), *s = zmq_socket(context, ZMQ_XPUB);
    int hwm = size < 1024 ? 100000 : 100000000 / size, nodrop = 1;
    char endpoint[64], subscription[16];
    size_t n = sizeof endpoint;
    unsigned char seq[8], *payload = noise(size);
    must(zmq_setsockopt(s, ZMQ_SNDHWM, &hwm, sizeof hwm) == 0, "hwm");
    must(zmq_setsockopt(s, ZMQ_XPUB_NODROP, &nodrop, sizeof nodrop) == 0, "nodrop");
    must(zmq_bind(s, "tcp://127.0.0.1:*") == 0, "bind");
    must(zmq_getsockopt(s, ZMQ_LAST_ENDPOINT, endpoint, &n) == 0, "endpoint");
    printf("%s\n", strrchr(endpoint, ':') + 1);
    fflush(stdout);
    must(zmq_recv(s, subscription, sizeof subscription, 0) >= 0, "subscription");
    for (uint64_t i = 0; i < count; i++) {
        number(seq, i);
        must(zmq_send(s, topic, TOPIC, ZMQ_SNDMORE) >= 0, "topic");
        must(zmq_send(s, seq, sizeof seq, ZMQ_SNDMORE) >= 0, "number");
        must(zmq_send(s, payload + i % size, size, 0) >= 0, "payload");
    }
    zmq_close(s);
    zmq_ctx_term(context);
}

static void send_all(int fd, const void *b, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = send(fd, (const char *)b + done, n - done, MSG_NOSIGNAL);
        must(k > 0, "send");
        done += k;
    }
}

static void receive_all(int fd, void *b, size_t n)
{
    must(recv(fd, b, n, MSG_WAITALL) == (ssize_t)n, "receive");
}

static void greet(int fd, const char *type)
{
    unsigned char greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1, 'N', 'U', 'L', 'L'};
    unsigned char ready[] = "\x04\x19\x05READY\x0bSocket-Type\0\0\0\3...", head[2], body[256];
    memcpy(ready + sizeof ready - 4, type, 3);
    send_all(fd, greeting, sizeof greeting);
    send_all(fd, ready, sizeof ready - 1);
    receive_all(fd, body, sizeof greeting);
    receive_all(fd, head, 2);
    receive_all(fd, body, head[1]); /* the peer's READY */
}

static void blast(size_t size, uint64_t count)
{
    int fd, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    unsigned char head[2], body[256];
    must(bind(listener, (void *)&a, sizeof a) == 0 && listen(listener, 1) == 0, "bind");
    must(getsockname(listener, (void *)&a, &n) == 0, "name");
    printf("%d\n", ntohs(a.sin_port));
    fflush(stdout);
    fd = accept(listener, NULL, NULL);
    must(fd >= 0, "accept");
    greet(fd, "PUB");
    receive_all(fd, head, 2);
    receive_all(fd, body, head[1]); /* its subscription */

    /* Some 128 KiB of encoded messages, whose numbers change each time. */
    size_t length = 2 + TOPIC + 2 + 8 + (size > 255 ? 9 : 2) + size;
    size_t batch = (128 << 10) / length + 1, at = 0;
    unsigned char *b = malloc(batch * length), *payload = noise(size);
    must(b != NULL, "malloc");
    for (size_t i = 0; i < batch; i++) {
        b[at++] = 1, b[at++] = TOPIC;
        memcpy(b + at, topic, TOPIC), at += TOPIC;
        b[at++] = 1, b[at++] = 8;
        at += 8;
        if (size > 255)
            b[at++] = 2, number(b + at, size), at += 8;
        else
            b[at++] = 0, b[at++] = size;
        memcpy(b + at, payload + i % size, size), at += size;
    }
    for (uint64_t sent = 0; sent < count; sent += batch) {
        if (batch > count - sent)
            batch = count - sent;
        for (size_t i = 0; i < batch; i++)
            number(b + i * length + 4 + TOPIC, sent + i);
        send_all(fd, b, batch * length);
    }
    shutdown(fd, SHUT_WR);
    while (recv(fd, body, sizeof body, 0) > 0)
        ; /* until the reader has it all */
}

static void subscribe(const char *endpoint, uint64_t count)
{
    void *context = zmq_ctx_new(), *s = zmq_socket(context, ZMQ_SUB);
    int hwm = HWM;
    struct clock from = {0};
    zmq_msg_t m;
    must(zmq_setsockopt(s, ZMQ_RCVHWM, &hwm, sizeof hwm) == 0, "hwm");
    must(zmq_setsockopt(s, ZMQ_SUBSCRIBE, "", 0) == 0, "subscribe");
    must(zmq_connect(s, endpoint) == 0, "connect");
    zmq_msg_init(&m);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t seq = 0;
        for (int frame = 0, more = 1; more; frame++) {
            must(zmq_msg_recv(&m, s, 0) >= 0, "receive");
            more = zmq_msg_more(&m);
            if (frame == 1)
                for (int k = 0; k < 8; k++)
                    seq = seq << 8 | ((unsigned char *)zmq_msg_data(&m))[k];
        }
        if (seq != i) {
            fprintf(stderr, "message %llu where %llu must be\n", (unsigned long long)seq, (unsigned long long)i);
            exit(1);
        }
        if (i == 0)
            from = now();
    }
    report(from);
}

static void drain(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    static char sink[1 << 20];
    int lowat = 1 << 20;
    struct clock from;
    must(connect(fd, (void *)&a, sizeof a) == 0, "connect");
    greet(fd, "SUB");
    send_all(fd, "\x04\x0a\x09SUBSCRIBE", 12);
    must(recv(fd, sink, 1, 0) == 1, "receive");
    from = now();
    /* Woken up seldom, it costs the publisher as little as a reader can. */
    must(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &lowat, sizeof lowat) == 0, "lowat");
    while (recv(fd, sink, sizeof sink, MSG_TRUNC) > 0) /* TCP then copies nothing */
        ;
    report(from);
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "publish"))
        publish(atoll(argv[2]), atoll(argv[3]));
    else if (argc == 4 && !strcmp(argv[1], "blast"))
        blast(atoll(argv[2]), atoll(argv[3]));
    else if (argc == 4 && !strcmp(argv[1], "subscribe"))
        subscribe(argv[2], atoll(argv[3]));
    else if (argc == 3 && !strcmp(argv[1], "drain"))
        drain(atoi(argv[2]));
    else
        return 2;
    return 0;
}
