/* What runs an answer that is written in C: in a process of its own, with traps around all that it is given.
 *
 * Each array lies in pages of its own, between others that nobody may touch, and either ends where those behind it begin
 * or begins where those before it end. What is const can't be written. So a read or write outside stops at once, and the reply
 * says at which number of which array. Pages can also be counted: only the last `keep` of an array are open, and each
 * other one that is touched is noted in order, as a cache of so many pages would fetch it.
 *
 * in_c.py compiles this together with the answer and with a `call` made of the functions' declarations, and speaks to
 * it through stdin and stdout. What the answer prints goes to stderr. POSIX alone is needed. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define ARRAYS 12
#define NUMBERS 12
#define STACK (64 << 10) /* bytes that a function may use */
#define MOST_KEPT 64     /* pages of an array that can be open while they are counted */
#define NOTES (1 << 16)  /* of pages that were touched */
#define CLOSED (64 << 20) /* bytes on each side of an array that nobody may touch: they take no memory */

enum { DONE, OUTSIDE, NOT_WRITTEN_YET, SIGNAL }; /* kinds of a reply */

typedef struct {
    char *pages, *data; /* its own pages, and the array in them */
    int64_t size, num_pages, writable, keep;
    int64_t open[MOST_KEPT], num_fetched; /* the pages that are open, the oldest is open[num_fetched % keep] */
    int32_t *fetched;
} Array;

int64_t call(const char *name, void **arrays, const int64_t *numbers); /* made by in_c.py */

static Array arrays[ARRAYS + 1];
static int64_t num_arrays, page, allocated;
static int replies;
static char stack_of_signals[1 << 16];

static void send_all(const void *data, int64_t size) {
    for (const char *at = data; size > 0;) {
        const ssize_t n = write(replies, at, (size_t)size);
        if (n <= 0) _exit(9);
        at += n, size -= n;
    }
}

static void receive_all(void *data, int64_t size) {
    for (char *at = data; size > 0;) {
        const ssize_t n = read(0, at, (size_t)size);
        if (n <= 0) _exit(0);
        at += n, size -= n;
    }
}

static int64_t receive(void) {
    int64_t number;
    receive_all(&number, sizeof number);
    return number;
}

/* A reply after which nothing goes on. */
_Noreturn static void end_with(int64_t kind, int64_t first, int64_t second) {
    const int64_t reply[3] = {kind, first, second};
    send_all(reply, sizeof reply);
    _exit(3);
}

_Noreturn void not_written(const char *function) {
    const int64_t length = (int64_t)strlen(function);
    const int64_t reply[3] = {NOT_WRITTEN_YET, length, 0};
    send_all(reply, sizeof reply), send_all(function, length);
    _exit(3);
}

static int access_of(const Array *a) { return a->writable ? PROT_READ | PROT_WRITE : PROT_READ; }

/* Open a page of an array whose pages are counted, and close the one that was opened first. */
static int fetched(Array *a, int64_t number) {
    if (!a->keep) return 0;
    const int64_t known = a->num_fetched < a->keep ? a->num_fetched : a->keep;
    for (int64_t i = 0; i < known; i++)
        if (a->open[i] == number) return 0; /* it is open: this is a write to what is const */
    int64_t *slot = &a->open[a->num_fetched % a->keep];
    if (a->num_fetched >= a->keep) mprotect(a->pages + *slot * page, (size_t)page, PROT_NONE);
    *slot = number;
    if (a->num_fetched < NOTES) a->fetched[a->num_fetched] = (int32_t)number;
    a->num_fetched++;
    return mprotect(a->pages + number * page, (size_t)page, access_of(a)) == 0;
}

static void trap(int signal, siginfo_t *info, void *context) {
    (void)context;
    const char *at = info->si_addr;
    if (signal == SIGSEGV || signal == SIGBUS)
        for (int64_t i = 0; i <= num_arrays; i++) { /* the last one is the stack */
            Array *a = &arrays[i];
            const char *end = a->pages + a->num_pages * page;
            if (at < a->pages - CLOSED || at >= end + CLOSED) continue;
            if (at >= a->pages && at < end && fetched(a, (at - a->pages) / page)) return;
            end_with(OUTSIDE, i, at - a->data);
        }
    end_with(SIGNAL, signal, (int64_t)(intptr_t)at);
}

/* Room for an array between pages that are closed. */
static void make(Array *a, int64_t size, int64_t writable, int64_t keep, int64_t at_end) {
    const int64_t num_pages = (size + page - 1) / page;
    char *room = mmap(NULL, (size_t)(num_pages * page + 2 * CLOSED), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) _exit(8);
    *a = (Array){.pages = room + CLOSED, .size = size, .num_pages = num_pages, .writable = writable, .keep = keep};
    a->data = a->pages + (at_end ? num_pages * page - size : 0);
    if (num_pages) mprotect(a->pages, (size_t)(num_pages * page), PROT_READ | PROT_WRITE);
    if (keep) a->fetched = malloc(NOTES * sizeof *a->fetched);
}

static void unmake(Array *a) {
    munmap(a->pages - CLOSED, (size_t)(a->num_pages * page + 2 * CLOSED));
    free(a->fetched);
}

/* The answer's own malloc, calloc and so on. */
void *counted_malloc(size_t size) { return allocated += (int64_t)size, malloc(size); }
void *counted_calloc(size_t n, size_t size) { return allocated += (int64_t)(n * size), calloc(n, size); }
void *counted_realloc(void *old, size_t size) { return allocated += (int64_t)size, realloc(old, size); }
void *counted_aligned_alloc(size_t to, size_t size) { return allocated += (int64_t)size, aligned_alloc(to, size); }
int counted_posix_memalign(void **made, size_t to, size_t size) {
    return allocated += (int64_t)size, posix_memalign(made, to, size);
}

typedef struct {
    char name[32];
    int64_t numbers[NUMBERS], value;
} Call;

static void *do_call(void *given) {
    Call *own = given;
    void *data[ARRAYS];
    sigaltstack(&(stack_t){.ss_sp = stack_of_signals, .ss_size = sizeof stack_of_signals}, NULL);
    for (int64_t i = 0; i < num_arrays; i++) data[i] = arrays[i].data;
    own->value = call(own->name, data, own->numbers);
    return NULL;
}

/* One call: its name; the arrays, each with size, whether it can be written, pages that are kept (0: all, and none is
 * counted), and contents; whether they lie at the ends of their pages; the numbers. */
static void serve(void) {
    Call own = {.value = 0};
    receive_all(own.name, sizeof own.name);
    num_arrays = receive();
    const int64_t at_end = receive();
    for (int64_t i = 0; i < num_arrays; i++) {
        const int64_t size = receive(), writable = receive(), keep = receive();
        make(&arrays[i], size, writable, keep, at_end);
        receive_all(arrays[i].data, size);
    }
    const int64_t num_numbers = receive();
    for (int64_t i = 0; i < num_numbers; i++) own.numbers[i] = receive();
    for (int64_t i = 0; i < num_arrays; i++) {
        const Array *a = &arrays[i];
        if (a->num_pages) mprotect(a->pages, (size_t)(a->num_pages * page), a->keep ? PROT_NONE : access_of(a));
    }
    allocated = 0;
    make(&arrays[num_arrays], STACK + page, 1, 0, 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, arrays[num_arrays].pages, (size_t)(STACK + page));
    pthread_t thread;
    if (pthread_create(&thread, &attributes, do_call, &own)) _exit(7);
    pthread_join(thread, NULL);
    const int64_t reply[3] = {DONE, own.value, allocated};
    send_all(reply, sizeof reply);
    for (int64_t i = 0; i <= num_arrays; i++) {
        Array *a = &arrays[i];
        if (i < num_arrays && a->writable) {
            if (a->num_pages) mprotect(a->pages, (size_t)(a->num_pages * page), PROT_READ);
            send_all(a->data, a->size);
        }
        if (a->keep) {
            const int64_t noted = a->num_fetched < NOTES ? a->num_fetched : NOTES;
            send_all(&a->num_fetched, sizeof a->num_fetched);
            send_all(a->fetched, noted * (int64_t)sizeof *a->fetched);
        }
        unmake(a);
    }
}

/* End with the judge, whatever the answer does. */
static void *watch(void *nothing) {
    struct pollfd judge = {.fd = 0, .events = 0};
    poll(&judge, 1, -1);
    _exit(1);
    return nothing;
}

int main(void) {
    page = sysconf(_SC_PAGESIZE);
    replies = dup(1);
    dup2(2, 1);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){1, 1}); /* from here on nothing can be opened; poll takes one that is */
    struct sigaction action = {.sa_sigaction = trap, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (int i = 0; i < 5; i++) sigaction(signals[i], &action, NULL);
    signal(SIGINT, SIG_IGN); /* a Ctrl-C is told once, by the judge */
    sigset_t alarms;
    sigemptyset(&alarms), sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarms, NULL); /* they are for threads that a test makes */
    pthread_t watcher;
    pthread_create(&watcher, NULL, watch, NULL);
    while (1) serve();
}
