/* The floor of a server's cost: an epoll loop that sends the same bytes for each request head it receives.
 *
 * It parses nothing but the end of a head, runs no application and checks nothing, so its CPU time per request is the
 * kernel's (accept, epoll_wait, recv, send) and little else. The distance of a real server to it is what that server,
 * its interpreter and its application cost. Not a web server: it has no limits and no timeouts.
 *
 * Usage: floor PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* As long as the response of the fixture application through Towline. */
static const char RESPONSE[] =
    "HTTP/1.1 200 OK\r\n"
    "content-type: text/plain\r\n"
    "content-length: 7\r\n"
    "date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
    "server: floor\r\n"
    "\r\n"
    "alive\r\n";
enum { RESPONSE_BYTES = sizeof RESPONSE - 1, MAX_EVENTS = 512, MAX_FDS = 1 << 16, MAX_PIPELINED = 64 };

/* Bytes of "\r\n\r\n" seen so far, by descriptor: a head can be cut anywhere. */
static unsigned char matched[MAX_FDS];
static char input[64 * 1024];
static char output[MAX_PIPELINED * RESPONSE_BYTES];

static void fail(const char *call)
{
    perror(call);
    exit(1);
}

static int listen_on(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    if (listener < 0)
        fail("socket");
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0)
        fail("bind");
    if (listen(listener, 2048) < 0)
        fail("listen");
    return listener;
}

/* Number of heads that end within n bytes of input. */
static int count_heads(int fd, ssize_t n)
{
    unsigned char state = matched[fd];
    int heads = 0;
    for (const char *at = input, *end = input + n; at < end; at++) {
        /* Outside of a line end nothing but CR matters. */
        if (state == 0 && (at = memchr(at, '\r', (size_t)(end - at))) == NULL)
            break;
        if (*at == (state % 2 ? '\n' : '\r'))
            state++;
        else
            state = *at == '\r';
        if (state == 4) {
            heads++;
            state = 0;
        }
    }
    matched[fd] = state;
    return heads;
}

static void serve(int fd)
{
    ssize_t n = recv(fd, input, sizeof input, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        close(fd);
        return;
    }
    for (int heads = count_heads(fd, n); heads > 0; heads -= MAX_PIPELINED) {
        size_t bytes = (size_t)(heads < MAX_PIPELINED ? heads : MAX_PIPELINED) * RESPONSE_BYTES;
        /* A client that does not read gets no more: the buffer of the kernel is the only one. */
        if (send(fd, output, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) {
            close(fd);
            return;
        }
    }
}

int main(int count, char **arguments)
{
    if (count != 2)
        return fprintf(stderr, "usage: floor PORT\n"), 2;
    for (int i = 0; i < MAX_PIPELINED; i++)
        memcpy(output + i * RESPONSE_BYTES, RESPONSE, RESPONSE_BYTES);
    int listener = listen_on(atoi(arguments[1])), poll = epoll_create1(EPOLL_CLOEXEC), on = 1;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[MAX_EVENTS];
    if (poll < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event) < 0)
        fail("epoll");
    for (;;) {
        int ready = epoll_wait(poll, events, MAX_EVENTS, -1);
        if (ready < 0 && errno != EINTR)
            fail("epoll_wait");
        for (int i = 0; i < ready; i++) {
            if (events[i].data.fd != listener) {
                serve(events[i].data.fd);
                continue;
            }
            for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
                event.data.fd = fd;
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                if (fd >= MAX_FDS || epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) < 0)
                    close(fd);
                else
                    matched[fd] = 0;
            }
        }
    }
}
