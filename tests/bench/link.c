/* See link.h. */
#define _GNU_SOURCE
#include "link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

_Noreturn void die(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("mqttload: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(code);
}

void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        die(1, "out of memory");
    return memory;
}

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void append(struct buffer *b, const void *bytes, size_t n)
{
    if (b->end + n > b->capacity && b->start) {
        memmove(b->bytes, b->bytes + b->start, b->end - b->start);
        b->end -= b->start;
        b->start = 0;
    }
    if (b->end + n > b->capacity) {
        b->capacity = (b->end + n) * 2;
        b->bytes = realloc(b->bytes, b->capacity);
        if (!b->bytes)
            die(1, "out of memory");
    }
    memcpy(b->bytes + b->end, bytes, n);
    b->end += n;
}

void append_hex(struct buffer *b, uint64_t value)
{
    char text[16];
    for (int i = 15; i >= 0; i--, value >>= 4)
        text[i] = "0123456789abcdef"[value & 15];
    append(b, text, sizeof text);
}

uint64_t read_hex(const uint8_t *text)
{
    uint64_t value = 0;
    for (int i = 0; i < 16; i++) {
        unsigned digit = (unsigned)(text[i] >= 'a' ? text[i] - 'a' + 10 : text[i] - '0');
        value = value << 4 | (digit & 15);
    }
    return value;
}

void append_text(struct buffer *b, const char *text)
{
    size_t n = strlen(text);
    uint8_t length[2] = {(uint8_t)(n >> 8), (uint8_t)n};
    append(b, length, 2);
    append(b, text, n);
}

void append_packet(struct buffer *b, uint8_t first, const struct buffer *rest, size_t more)
{
    uint8_t header[5] = {first};
    size_t remaining = rest->end + more, n = 1;
    do {
        uint8_t digit = remaining % 128;
        remaining /= 128;
        header[n++] = remaining ? digit | 128 : digit;
    } while (remaining);
    append(b, header, n);
    append(b, rest->bytes, rest->end);
}

void flush_out(int poller, struct connection *c)
{
    while (c->out.start < c->out.end) {
        ssize_t n = write(c->fd, c->out.bytes + c->out.start, c->out.end - c->out.start);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0)
            finish(EXIT_PEER, strerror(errno));
        c->out.start += (size_t)n;
    }
    if (c->out.start == c->out.end)
        c->out.start = c->out.end = 0;
    bool blocked = c->out.end > 0;
    if (blocked != c->wants_write) {
        struct epoll_event e = {.events = EPOLLIN | (blocked ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
        c->wants_write = blocked;
    }
}

char *expand(const char *pattern, int number)
{
    char *text = NULL;
    const char *mark = strstr(pattern, "{i}");
    int n = mark ? asprintf(&text, "%.*s%d%s", (int)(mark - pattern), pattern, number, mark + 3)
                 : asprintf(&text, "%s", pattern);
    if (n < 0 || n > 60000)
        die(EXIT_USAGE, "pattern too long: %.40s", pattern);
    return text;
}

struct connection *adopt(int poller, int fd, int number)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct connection *c = allocate(1, sizeof *c);
    c->fd = fd;
    c->number = number;
    c->in.capacity = INPUT_BYTES;
    c->in.bytes = allocate(INPUT_BYTES, 1);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
    return c;
}

struct connection *dial(int poller, int port, int number, const struct login *login)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        die(EXIT_PEER, "connect to port %d: %s", port, strerror(errno));
    /* Blocking until connected keeps the accept queue short; from here on nothing may block. */
    if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
        die(1, "fcntl: %s", strerror(errno));
    struct connection *c = adopt(poller, fd, number);
    struct buffer body = {0};
    uint8_t flags = (login->keep_session ? 0 : 2) | (login->user ? 128 : 0) | (login->password ? 64 : 0);
    append_text(&body, "MQTT");
    append(&body, (uint8_t[]){4, flags, 0, 0}, 4);
    append_text(&body, login->client);
    if (login->user)
        append_text(&body, login->user);
    if (login->password)
        append_text(&body, login->password);
    append_packet(&c->out, CONNECT << 4, &body, 0);
    free(body.bytes);
    flush_out(poller, c);
    return c;
}

void hang_up(int poller, struct connection *c)
{
    epoll_ctl(poller, EPOLL_CTL_DEL, c->fd, NULL);
    close(c->fd);
    free(c->in.bytes);
    free(c->out.bytes);
    free(c->head);
    free(c->sent_ns);
    free(c->free_ids);
    free(c);
}

/* Take whole packets off the front of the input; the rest of a packet stays. */
static void parse(struct connection *c)
{
    struct buffer *b = &c->in;
    for (;;) {
        size_t at = b->start + 1, length = 0;
        unsigned shift = 0;
        bool whole = false;
        for (; at < b->end && shift <= 21 && !whole; shift += 7) {
            length |= (size_t)(b->bytes[at] & 127) << shift;
            whole = !(b->bytes[at++] & 128);
        }
        if (!whole && shift > 21)
            finish(EXIT_PEER, "malformed packet length");
        if (whole && length > INPUT_BYTES - 5)
            finish(EXIT_PEER, "packet larger than the input buffer");
        if (!whole || b->end - at < length)
            break;
        handle_packet(c, b->bytes[b->start], b->bytes + at, length);
        b->start = at + length;
    }
    memmove(b->bytes, b->bytes + b->start, b->end - b->start);
    b->end -= b->start;
    b->start = 0;
}

bool read_in(int poller, struct connection *c, void (*answer)(struct connection *))
{
    for (;;) {
        size_t room = c->in.capacity - c->in.end;
        ssize_t n = read(c->fd, c->in.bytes + c->in.end, room);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return true;
        if (n <= 0)
            return false;
        c->in.end += (size_t)n;
        parse(c);
        answer(c);
        flush_out(poller, c);
        if ((size_t)n < room)
            return true; /* a short read: the socket is empty, the next epoll says when not */
    }
}
