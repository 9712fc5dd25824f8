// Plays requests from a file over HTTP/1.1 on loopback: connections may start one after the other, and requests may be paced.
//
// usage: play PORT CONNECTIONS SECONDS STAGGER_US EVERY_US FILE
//   STAGGER_US  connection i starts i × STAGGER_US after the first: streams that start together would queue for their first byte
//   EVERY_US    a connection sends a request each EVERY_US, or as soon as the one before is answered, if that is later; 0: at once
//   FILE        requests as they go over the wire, each behind a line with its length; connection i plays i, i + CONNECTIONS, …
// Warm-up: the first tenth, at least 0.3 s, is not counted. Prints one JSON line with the fields of loadgen.c, and `total`: all answers.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { HEADERS = 16384, MAX_SAMPLES = 4000000, MAX_ERRORS = 1000 };
typedef enum { IN_HEAD, IN_LENGTH, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER } State;

typedef struct {
  char *bytes;
  size_t length;
} Request;

typedef struct {
  int fd, is_idle, status, head_length;
  size_t next_request, sent;
  int64_t due, started, first_byte;
  State state;
  long left;
  char head[HEADERS];
} Connection;

static int port, epoll;
static size_t request_count, connections;
static Request *requests;
static uint32_t *latency, *first;
static size_t samples;
static long errors, non200, total, bytes, reads;
static int64_t counted_from, end, every_ns;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void fail(const char *what) {
  perror(what);
  exit(2);
}

static void read_requests(const char *path) {
  FILE *file = fopen(path, "rb");
  size_t length, room = 0;
  if (!file) fail(path);
  while (fscanf(file, "%zu", &length) == 1 && fgetc(file) == '\n') {
    if (request_count == room) requests = realloc(requests, (room = room ? 2 * room : 64) * sizeof *requests);
    Request request = {malloc(length), length};
    if (fread(request.bytes, 1, length, file) != length) fail("half a request");
    requests[request_count++] = request;
  }
  fclose(file);
  if (request_count < connections) {
    fprintf(stderr, "fewer requests than connections in %s\n", path);
    exit(2);
  }
}

static void open_connection(Connection *c) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
  int one = 1;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (connect(c->fd, (void *)&address, sizeof address)) fail("connect");
  fcntl(c->fd, F_SETFL, O_NONBLOCK);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
  epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event);
}

// Requests are small against a socket's buffer: where it is full, the connection is watched until it takes the rest.
static void send_rest(Connection *c) {
  Request *request = &requests[c->next_request];
  while (c->sent < request->length) {
    ssize_t wrote = send(c->fd, request->bytes + c->sent, request->length - c->sent, MSG_NOSIGNAL);
    if (wrote <= 0) break;
    c->sent += wrote;
  }
  struct epoll_event event = {.events = c->sent < request->length ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = c};
  epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
}

static void start(Connection *c) {
  c->is_idle = c->head_length = 0;
  c->sent = 0;
  c->first_byte = 0;
  c->state = IN_HEAD;
  c->started = now_ns();
  send_rest(c);
}

static void finish(Connection *c) {
  int64_t now = now_ns();
  total++;
  if (c->status != 200) non200++;
  else if (c->started >= counted_from && samples < MAX_SAMPLES) {
    latency[samples] = (now - c->started) / 1000;
    first[samples++] = ((c->first_byte ? c->first_byte : now) - c->started) / 1000;
  }
  c->next_request = (c->next_request + connections) % request_count;
  c->due = every_ns ? c->due + every_ns : now;
  if (c->due < now) c->due = now;
  if (now < end && c->due <= now) start(c);
  else c->is_idle = 1;
}

static int read_head(Connection *c, char byte) {
  c->head[c->head_length++] = byte;
  if (c->head_length == HEADERS - 1) fail("a head without end");
  if (c->head_length < 4 || memcmp(c->head + c->head_length - 4, "\r\n\r\n", 4)) return 0;
  c->head[c->head_length] = 0;
  c->status = atoi(c->head + 9);
  c->head_length = 0;
  if (c->status == 100) return 0;
  char *length = strcasestr(c->head, "\r\ncontent-length:");
  c->state = strcasestr(c->head, "\r\ntransfer-encoding: chunked") ? CHUNK_SIZE : IN_LENGTH;
  c->left = length ? atol(length + 17) : 0;
  return c->state == IN_LENGTH && !c->left;
}

// Reads a body's bytes; 1 where the answer is complete.
static int feed(Connection *c, char *data, long length) {
  for (long i = 0; i < length;) {
    if (c->state == IN_HEAD) {
      if (read_head(c, data[i++])) return 1;
    } else if (c->state == IN_LENGTH || c->state == CHUNK_DATA) {
      long taken = length - i < c->left ? length - i : c->left;
      if (!c->first_byte) c->first_byte = now_ns();
      c->left -= taken;
      i += taken;
      bytes += taken;
      if (!c->left && c->state == IN_LENGTH) return 1;
      if (!c->left) c->state = CHUNK_END;
    } else {
      char byte = data[i++];
      if (byte != '\n') {
        if (byte != '\r' && c->head_length < 30) c->head[c->head_length++] = byte;
        continue;
      }
      c->head[c->head_length] = 0;
      if (c->state == TRAILER && !c->head_length) return 1;
      if (c->state == CHUNK_SIZE) {
        c->left = strtol(c->head, 0, 16);
        c->state = c->left ? CHUNK_DATA : TRAILER;
      } else if (c->state == CHUNK_END) c->state = CHUNK_SIZE;
      c->head_length = 0;
    }
  }
  return 0;
}

static void receive(Connection *c) {
  static char data[1 << 18];
  ssize_t got = recv(c->fd, data, sizeof data, 0);
  if (got > 0) {
    reads++;
    if (!c->is_idle && feed(c, data, got)) finish(c);
  } else if (got == 0 || errno != EAGAIN) {  // closed: an error, unless nothing was asked
    if (!c->is_idle) errors++;
    close(c->fd);
    open_connection(c);
    if (!c->is_idle) start(c);
  }
}

static void arm(int timer, Connection *all) {
  int64_t earliest = end;
  for (size_t i = 0; i < connections; i++)
    if (all[i].is_idle && all[i].due < earliest) earliest = all[i].due;
  struct itimerspec at = {.it_value = {earliest / 1000000000, earliest % 1000000000}};
  timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, 0);
}

static int by_size(const void *a, const void *b) {
  uint32_t x = *(uint32_t *)a, y = *(uint32_t *)b;
  return x < y ? -1 : x > y;
}

static uint32_t quantile(uint32_t *sorted, double share) { return samples ? sorted[(size_t)((samples - 1) * share)] : 0; }

int main(int count, char **arguments) {
  if (count != 7) return fprintf(stderr, "usage: play PORT CONNECTIONS SECONDS STAGGER_US EVERY_US FILE\n"), 2;
  port = atoi(arguments[1]);
  connections = atoi(arguments[2]);
  double seconds = atof(arguments[3]), warm_up = seconds * 0.1 < 0.3 ? 0.3 : seconds * 0.1;
  int64_t stagger_ns = atoll(arguments[4]) * 1000;
  every_ns = atoll(arguments[5]) * 1000;
  read_requests(arguments[6]);
  latency = malloc(MAX_SAMPLES * sizeof *latency);
  first = malloc(MAX_SAMPLES * sizeof *first);
  epoll = epoll_create1(0);
  int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = 0};
  epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event);
  Connection *all = calloc(connections, sizeof *all);
  int64_t begun = now_ns();
  counted_from = begun + warm_up * 1e9;
  end = counted_from + seconds * 1e9;
  for (size_t i = 0; i < connections; i++) {
    all[i].next_request = i;
    all[i].due = begun + i * stagger_ns;
    all[i].is_idle = 1;
    open_connection(&all[i]);
  }
  while (now_ns() < end && errors < MAX_ERRORS) {
    struct epoll_event found[256];
    arm(timer, all);
    int ready = epoll_wait(epoll, found, 256, 50);
    for (int i = 0; i < ready; i++) {
      Connection *c = found[i].data.ptr;
      if (!c) continue;  // the timer: whoever is due starts below
      if (found[i].events & EPOLLOUT) send_rest(c);
      if (found[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
    }
    for (size_t i = 0; i < connections; i++)
      if (all[i].is_idle && all[i].due <= now_ns()) start(&all[i]);
  }
  double measured = (now_ns() - counted_from) / 1e9;
  qsort(latency, samples, sizeof *latency, by_size);
  qsort(first, samples, sizeof *first, by_size);
  printf("{\"n\":%zu,\"total\":%ld,\"errors\":%ld,\"non200\":%ld,\"rps\":%.1f,\"p50\":%u,\"p90\":%u,\"p99\":%u,\"max\":%u,"
         "\"ttfb50\":%u,\"ttfb99\":%u,\"bytes\":%ld,\"reads\":%ld}\n",
         samples, total, errors, non200, samples / measured, quantile(latency, .5), quantile(latency, .9), quantile(latency, .99),
         quantile(latency, 1), quantile(first, .5), quantile(first, .99), bytes, reads);
  return 0;
}
