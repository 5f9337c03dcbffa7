/* The harness around a C answer: traps on all sides of its arrays.
 *
 * Each array lies in its own pages, between protected pages. It either ends where the pages after it begin, or begins
 * where the pages before it end. Const arrays can't be written. So a read or write outside stops at once, and the reply
 * says at which element of which array. Pages can also be counted: only the last `keep` pages of an array are open, and
 * every other page that is touched is recorded in order, as a cache of that size would fetch it.
 *
 * in_c.py compiles this into a library, together with the answer and a `call` generated from the functions'
 * declarations. It needs only POSIX. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARRAYS 12
#define STACK (64 << 10) /* bytes that a function may use */
#define MOST_KEPT 64     /* pages of an array that can be open while they are counted */
#define NOTES (1 << 16)  /* touched pages that are recorded */
#define CLOSED (64 << 20) /* protected bytes on each side of an array: they take no memory */

enum { DONE, OUTSIDE, NOT_WRITTEN_YET, SIGNAL }; /* kinds of a reply */

typedef struct { /* as in in_c.py */
    void *data;
    int64_t size, writable, keep; /* keep: 0 if its pages are not counted */
    int32_t *fetched;
    int64_t num_fetched;
} Given;

typedef struct {
    int64_t kind, first, second, allocated;
} Reply;

typedef struct {
    Given *given;
    char *pages, *data; /* its own pages, and the array in them */
    int64_t num_pages;
    int64_t open[MOST_KEPT]; /* the pages that are open, the oldest is open[num_fetched % keep] */
} Array;

int64_t call(const char *name, void **arrays, const int64_t *numbers); /* made by in_c.py */

static Array arrays[ARRAYS + 1]; /* the last one is the stack */
static int64_t num_arrays, page, allocated;
static int replies[2];
static char stack_of_signals[1 << 16];

/* Report and stop the calling thread forever: it has no place to continue. */
_Noreturn static void stop(int64_t kind, int64_t first, int64_t second) {
    const Reply reply = {kind, first, second, allocated};
    if (write(replies[1], &reply, sizeof reply) < 0) _exit(9);
    while (1) pause();
}

_Noreturn void not_written(const char *function) { stop(NOT_WRITTEN_YET, (int64_t)(intptr_t)function, 0); }

static int access_of(const Array *a) { return a->given->writable ? PROT_READ | PROT_WRITE : PROT_READ; }

static void protect(const Array *a, int access) {
    if (a->num_pages) mprotect(a->pages, (size_t)(a->num_pages * page), access);
}

/* Open a page of an array whose pages are counted, and close the one that was opened first. */
static int fetched(Array *a, int64_t number) {
    Given *g = a->given;
    if (!g->keep) return 0;
    const int64_t known = g->num_fetched < g->keep ? g->num_fetched : g->keep;
    for (int64_t i = 0; i < known; i++)
        if (a->open[i] == number) return 0; /* it is open: this is a write to a const array */
    int64_t *slot = &a->open[g->num_fetched % g->keep];
    if (g->num_fetched >= g->keep) mprotect(a->pages + *slot * page, (size_t)page, PROT_NONE);
    *slot = number;
    if (g->num_fetched < NOTES) g->fetched[g->num_fetched] = (int32_t)number;
    g->num_fetched++;
    return mprotect(a->pages + number * page, (size_t)page, access_of(a)) == 0;
}

static void trap(int number, siginfo_t *info, void *context) {
    (void)context;
    const char *at = info->si_addr;
    if (number == SIGSEGV || number == SIGBUS)
        for (int64_t i = 0; i <= num_arrays; i++) {
            Array *a = &arrays[i];
            const char *end = a->pages + a->num_pages * page;
            if (at < a->pages - CLOSED || at >= end + CLOSED) continue;
            if (at >= a->pages && at < end && fetched(a, (at - a->pages) / page)) return;
            stop(OUTSIDE, i, at - a->data);
        }
    stop(SIGNAL, number, (int64_t)(intptr_t)at);
}

/* Room for an array between protected pages. */
static void make(Array *a, Given *given, int64_t at_end) {
    const int64_t num_pages = (given->size + page - 1) / page;
    char *room = mmap(NULL, (size_t)(num_pages * page + 2 * CLOSED), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) _exit(8);
    *a = (Array){.given = given, .pages = room + CLOSED, .num_pages = num_pages};
    a->data = a->pages + (at_end ? num_pages * page - given->size : 0);
    protect(a, PROT_READ | PROT_WRITE);
    if (given->data) memcpy(a->data, given->data, (size_t)given->size);
}

/* The answer's own malloc, calloc and so on. */
void *counted_malloc(size_t size) { return allocated += (int64_t)size, malloc(size); }
void *counted_calloc(size_t n, size_t size) { return allocated += (int64_t)(n * size), calloc(n, size); }
void *counted_realloc(void *old, size_t size) { return allocated += (int64_t)size, realloc(old, size); }
void *counted_aligned_alloc(size_t to, size_t size) { return allocated += (int64_t)size, aligned_alloc(to, size); }
int counted_posix_memalign(void **made, size_t to, size_t size) {
    return allocated += (int64_t)size, posix_memalign(made, to, size);
}

void *counted_mmap(void *at, size_t size, int access, int flags, int file, off_t offset) {
    return allocated += (int64_t)size, mmap(at, size, access, flags, file, offset);
}

typedef struct {
    const char *name;
    const int64_t *numbers;
} Call;

static void *do_call(void *own) {
    void *data[ARRAYS];
    Array *stack = &arrays[num_arrays];
    const int64_t here = (char *)__builtin_frame_address(0) - stack->pages; /* above it the system keeps its own data */
    stack->num_pages = (here - STACK) / page;
    protect(stack, PROT_NONE);
    sigaltstack(&(stack_t){.ss_sp = stack_of_signals, .ss_size = sizeof stack_of_signals}, NULL);
    for (int64_t i = 0; i < num_arrays; i++) data[i] = arrays[i].data;
    const Reply reply = {DONE, call(((Call *)own)->name, data, ((Call *)own)->numbers), 0, allocated};
    if (write(replies[1], &reply, sizeof reply) < 0) _exit(9);
    return NULL;
}

/* One call: the arrays are copied between traps, and what was written is copied back. After a trap they are left alone:
 * a thread waits in it forever. */
void run(const char *name, Given *given, int64_t count, int64_t at_end, const int64_t *numbers, Reply *reply) {
    struct sigaction action = {.sa_sigaction = trap, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    struct sigaction others[5];
    for (int i = 0; i < 5; i++) sigaction(signals[i], &action, &others[i]);
    Given of_stack = {.size = 8 * STACK, .writable = 1};
    Call own = {name, numbers};
    page = sysconf(_SC_PAGESIZE), num_arrays = count, allocated = 0;
    for (int64_t i = 0; i < count; i++) make(&arrays[i], &given[i], at_end);
    for (int64_t i = 0; i < count; i++) protect(&arrays[i], given[i].keep ? PROT_NONE : access_of(&arrays[i]));
    make(&arrays[count], &of_stack, 0);
    sigset_t alarms, before;
    sigemptyset(&alarms), sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarms, &before); /* they are for threads that a test creates */
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, arrays[count].pages, (size_t)(arrays[count].num_pages * page));
    pthread_t thread;
    if (pipe(replies)) _exit(7);
    if (pthread_create(&thread, &attributes, do_call, &own)) _exit(7);
    while (read(replies[0], reply, sizeof *reply) < 0 && errno == EINTR) continue;
    for (int i = 0; i < 5; i++) sigaction(signals[i], &others[i], NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    fflush(stdout);
    if (reply->kind != DONE) return;
    pthread_join(thread, NULL);
    close(replies[0]), close(replies[1]);
    for (int64_t i = 0; i <= count; i++) {
        Array *a = &arrays[i];
        protect(a, PROT_READ);
        if (i < count && given[i].writable) memcpy(given[i].data, a->data, (size_t)given[i].size);
        const int64_t num_pages = i < count ? a->num_pages : of_stack.size / page;
        munmap(a->pages - CLOSED, (size_t)(num_pages * page + 2 * CLOSED));
    }
}
