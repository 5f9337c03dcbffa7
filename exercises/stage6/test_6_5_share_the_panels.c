/* Threads for test_6_5_share_the_panels.py, and the `one_panel` that they call. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "linear.h"

#define MAX_THREADS 64

/* What the threads share. */
static struct {
    const Layer *layer;
    Counter *counters;
    int64_t *noted, room, size, num_panels;
} now;
static int64_t waiting; /* threads that have not begun yet */

static Counter *zeros(int64_t size) {
    const size_t bytes = (size_t)size * sizeof(Counter);
    return memset(aligned_alloc(sizeof(Counter), bytes), 0, bytes);
}

/* A note that the panel was computed. */
void one_panel(const Layer *layer, int64_t panel) {
    const int64_t i = __atomic_fetch_add(&now.noted[0], 1, __ATOMIC_RELAXED);
    if (i < now.room) now.noted[1 + i] = layer == now.layer ? panel : -1;
    sched_yield(); /* let the others run */
}

/* Wait until all are there. */
static void begin(void) {
    __atomic_fetch_sub(&waiting, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&waiting, __ATOMIC_ACQUIRE)) sched_yield();
}

static void *work(void *rank) {
    begin();
    work_on(now.layer, now.counters, (int64_t)(intptr_t)rank, now.size);
    return NULL;
}

static void *take_all(void *rank) {
    begin();
    for (int64_t i; (i = take(now.counters, (int64_t)(intptr_t)rank, now.size, now.num_panels)) >= 0;)
        __atomic_fetch_add(&now.noted[i < now.room ? i : now.room], 1, __ATOMIC_RELAXED);
    return NULL;
}

static void in_threads(void *(*does)(void *), const int64_t *ranks, int64_t count) {
    pthread_t threads[MAX_THREADS];
    sigset_t alarms, before;
    sigemptyset(&alarms), sigaddset(&alarms, SIGALRM);
    waiting = count;
    for (int64_t i = 0; i < count; i++) pthread_create(&threads[i], NULL, does, (void *)(intptr_t)ranks[i]);
    pthread_sigmask(SIG_BLOCK, &alarms, &before); /* they are for these threads */
    for (int64_t i = 0; i < count; i++) pthread_join(threads[i], NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* One thread calls `take` for all: order[i] asks next, and gets taken[i]. */
void takes(const int64_t *order, int64_t *taken, int64_t count, int64_t size, int64_t num_panels) {
    Counter *counters = zeros(size);
    for (int64_t i = 0; i < count; i++) taken[i] = take(counters, order[i], size, num_panels);
    free(counters);
}

/* Threads of these ranks, of `size`, work on a layer. noted[0]: how many panels they computed; then these panels. */
void together(const int64_t *ranks, int64_t *noted, int64_t count, int64_t room, int64_t size, int64_t out) {
    const Layer layer = {.n = 1, .in = 1, .out = out};
    now.layer = &layer, now.counters = zeros(size), now.noted = noted, now.room = room, now.size = size;
    in_threads(work, ranks, count);
    free(now.counters);
}

static void yield(int number) { (void)number, sched_yield(); }

/* `count` of `size` threads take all panels at once, and are made to switch at any instruction. The first `full` shares
 * have `share` panels each, and the others are empty. How often each panel was taken; then, how often another one. */
void race(const int64_t *ranks, int64_t *noted, int64_t count, int64_t size, int64_t share, int64_t full) {
    now.counters = zeros(size), now.noted = noted, now.room = full * share;
    now.size = size, now.num_panels = size * share;
    for (int64_t v = full; v < size; v++) now.counters[v].taken = share;
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = yield, .sa_flags = SA_RESTART}, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 50}, {0, 50}}, NULL);
    in_threads(take_all, ranks, count);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
    free(now.counters);
}
