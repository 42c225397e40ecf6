/*
 * mqttload: a bounded MQTT 3.1.1 load generator and its counterpart, for loopback only; the sink
 * speaks MQTT 5 in its place if asked.
 *
 *   mqttload publish   CONNS connections send TOTAL messages, WINDOW in flight each
 *   mqttload subscribe one connection counts what a broker hands it
 *   mqttload sink      a null broker: takes connections, acknowledges at once, counts
 *
 * One thread, one epoll set. Every run is bounded by --messages and --timeout. A payload starts
 * with 16 hex digits of CLOCK_MONOTONIC nanoseconds and 16 of the message number, so that whoever
 * receives it on this machine knows its age and tells a duplicate from a new message; a receiver
 * finds these digits anywhere in a payload, and several times in one that holds many messages. The
 * result is one line of JSON on stdout. Build: cc -O2 -o mqttload mqttload.c link.c
 */
#define _GNU_SOURCE
#include "link.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { STAMP_BYTES = 32, EVENTS = 256, MESSAGES_MAX = 50000000 };

static struct {
    const char *mode, *client, *topic, *properties, *user, *password;
    int port, connections, window, qos, level;
    size_t size;
    long messages;
    double rate, timeout_s, quiet_s;
    bool keep_session;
} opt = {
    .client = "dev{i}", .topic = "devices/dev{i}/messages/events/", .properties = "",
    .connections = 1, .window = 1, .qos = 1, .level = 4, .size = 200, .messages = 10000, .timeout_s = 60,
};

static int poller, listener = -1, timer = -1;
static struct connection **clients;
static char *filler;
static long sent, finished, duplicates, ready_count;
static uint64_t started_ns, last_ns;
static uint64_t *latency_ns;
static long latencies;
static uint8_t *seen;        /* one bit per message number */
static volatile sig_atomic_t interrupted;

/* ---- what is measured ---- */

static void count_latency(uint64_t since_ns, uint64_t now)
{
    if (latencies < opt.messages && now >= since_ns)
        latency_ns[latencies++] = now - since_ns;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double percentile_ms(double share)
{
    if (!latencies)
        return 0;
    long i = (long)(share * (double)latencies);
    return (double)latency_ns[i < latencies ? i : latencies - 1] / 1e6;
}

/* Print the result and leave; called once, at the end or when a peer ends the run early. */
_Noreturn void finish(int code, const char *why)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    double cpu_us = (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e6 +
                    (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
    double seconds = last_ns > started_ns ? (double)(last_ns - started_ns) / 1e9 : 0;
    qsort(latency_ns, (size_t)latencies, sizeof *latency_ns, by_value);
    printf("{\"mode\":\"%s\",\"qos\":%d,\"connections\":%d,\"window\":%d,\"size\":%zu,"
           "\"messages\":%ld,\"sent\":%ld,\"acked\":%ld,\"duplicates\":%ld,\"seconds\":%.4f,"
           "\"msgs_s\":%.0f,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"max_ms\":%.3f,"
           "\"cpu_us_msg\":%.2f}\n",
           opt.mode, opt.qos, opt.connections, opt.window, opt.size, opt.messages, sent, finished,
           duplicates, seconds, seconds > 0 ? (double)finished / seconds : 0, percentile_ms(0.5),
           percentile_ms(0.99), percentile_ms(1), finished ? cpu_us / (double)finished : 0);
    fflush(stdout);
    if (code)
        fprintf(stderr, "mqttload: %s after %ld of %ld messages\n", why, finished, opt.messages);
    exit(code);
}

/* ---- publishing ---- */

static void prepare_publish(struct connection *c)
{
    struct buffer topic = {0}, head = {0};
    char *expanded = expand(opt.topic, c->number), *whole = NULL;
    if (asprintf(&whole, "%s%s", expanded, opt.properties) < 0)
        die(1, "out of memory");
    append_text(&topic, whole);
    append_packet(&head, (uint8_t)(PUBLISH << 4 | opt.qos << 1), &topic,
                  (opt.qos ? 2 : 0) + opt.size);
    c->head = head.bytes;
    c->head_bytes = head.end;
    free(expanded);
    free(whole);
    free(topic.bytes);
    c->sent_ns = allocate((size_t)opt.window, sizeof *c->sent_ns);
    c->free_ids = allocate((size_t)opt.window, sizeof *c->free_ids);
    c->free_count = (unsigned)opt.window;
    for (int i = 0; i < opt.window; i++)
        c->free_ids[i] = (uint16_t)(i + 1);
}

static void publish(struct connection *c, uint64_t due_ns)
{
    append(&c->out, c->head, c->head_bytes);
    if (opt.qos) {
        uint16_t id = c->free_ids[c->free_first];
        c->free_first = (c->free_first + 1) % (unsigned)opt.window;
        c->free_count--;
        c->sent_ns[id - 1] = due_ns;
        append(&c->out, (uint8_t[]){(uint8_t)(id >> 8), (uint8_t)id}, 2);
    } else {
        finished++;
    }
    append_hex(&c->out, due_ns);
    append_hex(&c->out, (uint64_t)sent);
    append(&c->out, filler, opt.size - STAMP_BYTES);
    sent++;
}

static bool has_room(const struct connection *c)
{
    if (opt.qos)
        return c->free_count > 0;
    return c->out.end - c->out.start < INPUT_BYTES;
}

/* Keep a connection's window full; without a rate this is what drives the whole run. */
static void refill(struct connection *c)
{
    if (!c->head || !started_ns || opt.rate > 0)
        return;
    uint64_t now = now_ns();
    while (sent < opt.messages && has_room(c))
        publish(c, now);
}

/*
 * Send what is due by now, one message per connection in turn. The clock of a message starts when
 * it was due, not when it could be sent: a stalled server does not hide behind a stalled load.
 */
static void send_due(void)
{
    static int turn;
    uint64_t ticks, now = now_ns();
    if (read(timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN)
        die(1, "timer: %s", strerror(errno));
    for (int full = 0; sent < opt.messages && full < opt.connections;) {
        uint64_t due = started_ns + (uint64_t)((double)sent / opt.rate * 1e9);
        if (due > now)
            break;
        struct connection *c = clients[turn++ % opt.connections];
        if (!has_room(c)) {
            full++;
            continue;
        }
        full = 0;
        publish(c, due);
        flush_out(poller, c);
    }
}

static void acknowledged(struct connection *c, unsigned id)
{
    if (!id || id > (unsigned)opt.window || !c->sent_ns || !c->sent_ns[id - 1])
        finish(EXIT_PEER, "PUBACK of a message that is not in flight");
    last_ns = now_ns();
    count_latency(c->sent_ns[id - 1], last_ns);
    c->sent_ns[id - 1] = 0;
    c->free_ids[(c->free_first + c->free_count++) % (unsigned)opt.window] = (uint16_t)id;
    finished++;
}

/* ---- receiving ---- */

static void count_arrival(const uint8_t *stamp, uint64_t now)
{
    uint64_t since_ns = read_hex(stamp), n_th = read_hex(stamp + 16);
    if (!seen || n_th >= (uint64_t)opt.messages)
        return;
    if (seen[n_th >> 3] & 1 << (n_th & 7)) {
        duplicates++;
        return;
    }
    seen[n_th >> 3] |= (uint8_t)(1 << (n_th & 7));
    if (!started_ns)
        started_ns = since_ns;
    last_ns = now;
    count_latency(since_ns, now);
    finished++;
}

/* Return where the properties of MQTT 5 that begin at `i` end; `i` itself in MQTT 3.1.1. */
static size_t behind_properties(const uint8_t *p, size_t i, size_t n)
{
    size_t length = 0;
    if (opt.level < 5)
        return i;
    for (unsigned shift = 0; i < n; shift += 7) {
        length |= (size_t)(p[i] & 127) << shift;
        if (!(p[i++] & 128) || shift >= 21)
            break;
    }
    return i + length;
}

static void append_no_properties(struct buffer *b)
{
    if (opt.level == 5)
        append(b, (uint8_t[]){0}, 1);
}

/*
 * The gateway of ThingsBoard sends nothing before its server has named its limits; say that there
 * are none.
 */
static void answer_rpc(struct connection *c, const uint8_t *topic, size_t n)
{
    static const char request[] = "v1/devices/me/rpc/request/", limits[] = "{\"rateLimits\":{}}";
    struct buffer head = {0};
    char *reply = NULL;
    if (n < sizeof request || memcmp(topic, request, sizeof request - 1))
        return;
    if (asprintf(&reply, "v1/devices/me/rpc/response/%.*s", (int)(n - sizeof request + 1),
                 topic + sizeof request - 1) < 0)
        die(1, "out of memory");
    append_text(&head, reply);
    append_no_properties(&head);
    append_packet(&c->out, PUBLISH << 4, &head, sizeof limits - 1);
    append(&c->out, limits, sizeof limits - 1);
    free(reply);
    free(head.bytes);
}

static void received(struct connection *c, unsigned flags, const uint8_t *p, size_t n)
{
    unsigned qos = flags >> 1 & 3;
    size_t topic = n < 2 ? n : (size_t)p[0] << 8 | p[1], body = 2 + topic + (qos ? 2 : 0);
    if (body > n)
        finish(EXIT_PEER, "malformed PUBLISH");
    if (qos)
        append(&c->out, (uint8_t[]){PUBACK << 4, 2, p[body - 2], p[body - 1]}, 4);
    answer_rpc(c, p + 2, topic);
    uint64_t now = now_ns();
    body = behind_properties(p, body, n);
    for (size_t digits = 0, i = body; i < n; i++) {
        digits = isxdigit(p[i]) ? digits + 1 : 0;
        if (digits < STAMP_BYTES)
            continue;
        count_arrival(p + i + 1 - STAMP_BYTES, now);
        if (i == body + STAMP_BYTES - 1)
            break; /* a message as it was sent */
        digits = 0;
    }
}

static void subscribe(struct connection *c)
{
    struct buffer body = {0};
    append(&body, (uint8_t[]){0, 1}, 2);
    append_text(&body, opt.topic);
    append(&body, (uint8_t[]){(uint8_t)opt.qos}, 1);
    append_packet(&c->out, SUBSCRIBE << 4 | 2, &body, 0);
    free(body.bytes);
}

/* Grant each filter of a SUBSCRIBE what it asks for, QoS 1 at most. */
static void grant(struct connection *c, const uint8_t *p, size_t n)
{
    struct buffer body = {0};
    if (n < 2)
        finish(EXIT_PEER, "malformed SUBSCRIBE");
    append(&body, p, 2);
    append_no_properties(&body);
    for (size_t i = behind_properties(p, 2, n); i + 2 < n; i += 3 + ((size_t)p[i] << 8 | p[i + 1])) {
        size_t end = i + 2 + ((size_t)p[i] << 8 | p[i + 1]);
        append(&body, (uint8_t[]){end < n && p[end] ? 1 : 0}, 1);
    }
    append_packet(&c->out, SUBACK << 4, &body, 0);
    free(body.bytes);
}

/* A bridge sets the highest bit of the level. */
static void welcome_client(struct connection *c, int level)
{
    struct buffer body = {0};
    append(&body, (uint8_t[]){0, level != opt.level}, 2);
    append_no_properties(&body);
    append_packet(&c->out, CONNACK << 4, &body, 0);
    free(body.bytes);
    if (level == opt.level && !ready_count++) {
        fputs("{\"client\":true}\n", stdout);
        fflush(stdout);
    }
}

void handle_packet(struct connection *c, uint8_t first, const uint8_t *p, size_t n)
{
    switch (first >> 4) {
    case CONNECT:
        welcome_client(c, n > 6 ? p[6] & 127 : 0);
        break;
    case CONNACK:
        if (n < 2 || p[1])
            finish(EXIT_PEER, "connection refused");
        if (!strcmp(opt.mode, "subscribe")) {
            subscribe(c);
            break;
        }
        c->ready = true;
        ready_count++;
        break;
    case PUBLISH:
        received(c, first & 15, p, n);
        break;
    case PUBACK:
        if (n >= 2)
            acknowledged(c, (unsigned)p[0] << 8 | p[1]);
        break;
    case SUBSCRIBE:
        grant(c, p, n);
        break;
    case SUBACK:
        c->ready = true;
        ready_count++;
        break;
    case UNSUBSCRIBE:
        if (n >= 2)
            append(&c->out, (uint8_t[]){UNSUBACK << 4, 2, p[0], p[1]}, 4);
        break;
    case PINGREQ:
        append(&c->out, (uint8_t[]){PINGRESP << 4, 0}, 2);
        break;
    default:
        break;
    }
}

/* ---- the three modes ---- */

static void welcome(void)
{
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
        adopt(poller, fd, 0);
}

static void turn(int wait_ms)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(poller, events, EVENTS, wait_ms);
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == &listener) {
            welcome();
            continue;
        }
        if (events[i].data.ptr == &timer) {
            send_due();
            continue;
        }
        struct connection *c = events[i].data.ptr;
        if (events[i].events & EPOLLOUT)
            flush_out(poller, c);
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !read_in(poller, c, refill)) {
            if (clients)
                finish(EXIT_PEER, "connection closed by the peer");
            hang_up(poller, c);
        }
    }
}

static bool out_of_time(uint64_t since_ns)
{
    return interrupted || (double)(now_ns() - since_ns) / 1e9 > opt.timeout_s;
}

static void watch(int fd, void *tag)
{
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = tag};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
}

static void start_timer(void)
{
    /* Half a millisecond is finer than any latency that a paced run is asked for. */
    struct itimerspec every = {{0, 500000}, {0, 500000}};
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    timerfd_settime(timer, 0, &every, NULL);
    watch(timer, &timer);
}

static void connect_all(void)
{
    uint64_t begun = now_ns();
    clients = allocate((size_t)opt.connections, sizeof *clients);
    for (int i = 0; i < opt.connections; i++) {
        char *client = expand(opt.client, i);
        struct login login = {client, opt.user, opt.password, opt.keep_session};
        clients[i] = dial(poller, opt.port, i, &login);
        free(client);
        if (!strcmp(opt.mode, "publish"))
            prepare_publish(clients[i]);
    }
    while (ready_count < opt.connections) {
        turn(100);
        if (out_of_time(begun))
            finish(EXIT_TIMEOUT, "not all connections were accepted");
    }
}

/* QoS 0 has no answers to be driven by: fill whatever the kernel has taken; true if all has left. */
static bool push_all(void)
{
    bool empty = true;
    for (int i = 0; i < opt.connections; i++) {
        refill(clients[i]);
        flush_out(poller, clients[i]);
        empty &= !clients[i]->wants_write;
    }
    last_ns = now_ns();
    return empty;
}

static void run_publish(void)
{
    connect_all();
    started_ns = last_ns = now_ns();
    if (opt.rate > 0)
        start_timer();
    bool empty = push_all();
    while (finished < opt.messages || (!opt.qos && !empty)) {
        turn(opt.qos || opt.rate > 0 || !empty ? 100 : 0);
        if (!opt.qos)
            empty = push_all();
        if (out_of_time(started_ns))
            finish(EXIT_TIMEOUT, "out of time");
    }
    for (int i = 0; i < opt.connections; i++) {
        append(&clients[i]->out, (uint8_t[]){DISCONNECT << 4, 0}, 2);
        flush_out(poller, clients[i]);
    }
}

static void run_receiver(void)
{
    uint64_t begun = now_ns();
    seen = allocate((size_t)opt.messages / 8 + 1, 1);
    if (!strcmp(opt.mode, "subscribe")) {
        connect_all();
        fputs("{\"ready\":true}\n", stdout);
    } else {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)opt.port)};
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof address;
        int one = 1;
        listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(listener, (struct sockaddr *)&address, length) < 0 || listen(listener, 1024) < 0)
            die(1, "listen on port %d: %s", opt.port, strerror(errno));
        getsockname(listener, (struct sockaddr *)&address, &length);
        watch(listener, &listener);
        printf("{\"port\":%d}\n", ntohs(address.sin_port));
    }
    fflush(stdout);
    while (finished < opt.messages) {
        turn(100);
        if (out_of_time(begun))
            finish(EXIT_TIMEOUT, "out of time");
        if (opt.quiet_s > 0 && (double)(now_ns() - (last_ns ? last_ns : begun)) / 1e9 > opt.quiet_s)
            break;
    }
    for (int i = 0; i < 5; i++)
        turn(10); /* the last acknowledgements still go out */
}

/* ---- command line ---- */

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

static void usage(void)
{
    fputs("usage: mqttload publish|subscribe|sink --port PORT [--messages N] [--timeout SECONDS]\n"
          "  publish:   [--connections N] [--window N] [--size BYTES] [--qos 0|1] [--rate PER_S]\n"
          "             [--client ID] [--topic TOPIC] [--properties BAG]   {i} = connection number\n"
          "  subscribe: [--client ID] [--topic FILTER] [--qos 0|1] [--keep-session 0|1]\n"
          "  all but sink: [--user NAME] [--password TEXT];  sink: --port 0 = any, told on stdout\n"
          "  sink: [--level 4|5]   of MQTT 3.1.1 or 5; clients of another are refused\n"
          "  receivers: [--quiet SECONDS]   end when nothing new has come for so long\n",
          stderr);
    exit(EXIT_USAGE);
}

static double number(const char *text, double low, double high, const char *name)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || value < low || value > high)
        die(EXIT_USAGE, "--%s must be a number from %g to %g, not '%s'", name, low, high, text);
    return value;
}

static void parse_options(int argc, char **argv)
{
    static const struct option names[] = {
        {"port", 1, 0, 'p'}, {"connections", 1, 0, 'c'}, {"window", 1, 0, 'w'},
        {"messages", 1, 0, 'n'}, {"size", 1, 0, 's'}, {"rate", 1, 0, 'r'}, {"qos", 1, 0, 'q'},
        {"client", 1, 0, 'i'}, {"topic", 1, 0, 't'}, {"properties", 1, 0, 'b'},
        {"timeout", 1, 0, 'T'}, {"user", 1, 0, 'u'}, {"password", 1, 0, 'P'},
        {"quiet", 1, 0, 'Q'}, {"level", 1, 0, 'l'}, {"keep-session", 1, 0, 'k'}, {0, 0, 0, 0}};
    int c;
    while ((c = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (c) {
        case 'p': opt.port = (int)number(optarg, 0, 65535, "port"); break;
        case 'c': opt.connections = (int)number(optarg, 1, 20000, "connections"); break;
        case 'w': opt.window = (int)number(optarg, 1, 65535, "window"); break;
        case 'n': opt.messages = (long)number(optarg, 1, MESSAGES_MAX, "messages"); break;
        case 's': opt.size = (size_t)number(optarg, STAMP_BYTES, 1 << 18, "size"); break;
        case 'r': opt.rate = number(optarg, 0, 1e7, "rate"); break;
        case 'q': opt.qos = (int)number(optarg, 0, 1, "qos"); break;
        case 'i': opt.client = optarg; break;
        case 't': opt.topic = optarg; break;
        case 'b': opt.properties = optarg; break;
        case 'Q': opt.quiet_s = number(optarg, 0.1, 3600, "quiet"); break;
        case 'l': opt.level = (int)number(optarg, 4, 5, "level"); break;
        case 'k': opt.keep_session = number(optarg, 0, 1, "keep-session") > 0; break;
        case 'T': opt.timeout_s = number(optarg, 0.1, 3600, "timeout"); break;
        case 'u': opt.user = optarg; break;
        case 'P': opt.password = optarg; break;
        default: usage();
        }
    }
    if (optind != argc - 1)
        usage();
    opt.mode = argv[optind];
}

int main(int argc, char **argv)
{
    parse_options(argc, argv);
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    signal(SIGPIPE, SIG_IGN);
    poller = epoll_create1(EPOLL_CLOEXEC);
    latency_ns = allocate((size_t)opt.messages, sizeof *latency_ns);
    filler = allocate(opt.size, 1);
    memset(filler, 'x', opt.size);
    if (!strcmp(opt.mode, "publish"))
        run_publish();
    else if (!strcmp(opt.mode, "subscribe") || !strcmp(opt.mode, "sink"))
        run_receiver();
    else
        usage();
    finish(0, "done");
}
