/*
 * One MQTT 3.1.1 connection of the load tool: buffers, packets out, packets in.
 *
 * The program that links this supplies `handle_packet` and `finish`.
 */
#ifndef EDGEHUB_BENCH_LINK_H
#define EDGEHUB_BENCH_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CONNECT = 1, CONNACK, PUBLISH, PUBACK, SUBSCRIBE = 8, SUBACK, UNSUBSCRIBE, UNSUBACK,
       PINGREQ, PINGRESP, DISCONNECT };
enum { EXIT_USAGE = 2, EXIT_PEER = 3, EXIT_TIMEOUT = 4 };
enum { INPUT_BYTES = 1 << 19 };

struct buffer {
    uint8_t *bytes;
    size_t start, end, capacity;
};

struct connection {
    int fd;
    int number;
    bool ready;              /* CONNACK (and SUBACK, if asked for) has come */
    bool wants_write;        /* EPOLLOUT is armed */
    struct buffer in, out;
    uint8_t *head;           /* the PUBLISH up to the packet id: the same for every message */
    size_t head_bytes;
    uint64_t *sent_ns;       /* by packet id - 1; 0 = not in flight */
    uint16_t *free_ids;      /* ring of unused packet ids, oldest first */
    unsigned free_first, free_count;
};

struct login {
    const char *client, *user, *password; /* user, password: NULL = none */
    bool keep_session;                    /* CONNECT without clean session */
};

/* Supplied by the program. */
void handle_packet(struct connection *c, uint8_t first, const uint8_t *p, size_t n);
_Noreturn void finish(int code, const char *why);

_Noreturn void die(int code, const char *format, ...);
void *allocate(size_t count, size_t size);
uint64_t now_ns(void);
uint64_t read_hex(const uint8_t *text); /* of 16 digits */
/* Write `pattern` with {i} replaced by the connection's number; the caller frees it. */
char *expand(const char *pattern, int number);

void append(struct buffer *b, const void *bytes, size_t n);
void append_hex(struct buffer *b, uint64_t value);
void append_text(struct buffer *b, const char *text);
/* Append a packet's fixed header, sized for `rest` and `more` bytes that follow, then `rest`. */
void append_packet(struct buffer *b, uint8_t first, const struct buffer *rest, size_t more);

/* Connect to 127.0.0.1:`port`, make the socket non-blocking and send CONNECT. */
struct connection *dial(int poller, int port, int number, const struct login *login);
struct connection *adopt(int poller, int fd, int number);
void hang_up(int poller, struct connection *c);
void flush_out(int poller, struct connection *c);
/* Read until the socket is empty, handing on whole packets; false when the peer has gone. */
bool read_in(int poller, struct connection *c, void (*answer)(struct connection *));

#endif
