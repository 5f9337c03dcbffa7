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
    int64_t *done, room, size, num_panels; /* done[0]: how many; then the first `room` of them, or a count for each panel */
} now;
static int64_t waiting; /* threads that have not begun yet */

/* The panel's columns, column by column, and a note that it was computed. */
void one_panel(const Layer *layer, int64_t panel) {
    const int64_t noted = __atomic_fetch_add(&now.done[0], 1, __ATOMIC_RELAXED);
    if (noted < now.room) now.done[1 + noted] = panel;
    if (layer != now.layer || panel < 0 || panel >= now.num_panels) return;
    sched_yield(); /* let the others run */
    for (int64_t o = panel * PANEL; o < layer->out && o < (panel + 1) * PANEL; o++)
        for (int64_t t = 0; t < layer->n; t++) {
            float sum = 0;
            for (int64_t i = 0; i < layer->in; i++)
                sum += layer->x[t * layer->in + i] * layer->panels[(panel * layer->in + i) * PANEL + o % PANEL];
            layer->y[t * layer->out + o] += sum + layer->bias[o];
        }
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
    sigset_t alarms;
    sigemptyset(&alarms), sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
    begin();
    for (int64_t i; (i = take(now.counters, (int64_t)(intptr_t)rank, now.size, now.num_panels)) >= 0;)
        if (i < now.num_panels) __atomic_fetch_add(&now.done[1 + i], 1, __ATOMIC_RELAXED);
    return NULL;
}

static void in_threads(void *(*does)(void *), const int64_t *present, int64_t num_present) {
    pthread_t threads[MAX_THREADS];
    waiting = num_present;
    for (int64_t i = 0; i < num_present; i++) pthread_create(&threads[i], NULL, does, (void *)(intptr_t)present[i]);
    for (int64_t i = 0; i < num_present; i++) pthread_join(threads[i], NULL);
}

/* One thread calls `take` for all: order[i] asks next, and gets taken[i]. */
void takes(int64_t *counters, const int64_t *order, int64_t *taken, int64_t count, int64_t size, int64_t num_panels) {
    for (int64_t i = 0; i < count; i++) taken[i] = take((Counter *)counters, order[i], size, num_panels);
}

/* `present` of `size` threads work on a layer. */
void together(int64_t *counters, const int64_t *present, int64_t *done, const float *x, const float *panels,
              const float *bias, float *y, int64_t num_present, int64_t room, int64_t size, int64_t n, int64_t in,
              int64_t out) {
    const Layer layer = {x, panels, bias, y, n, in, out};
    now.layer = &layer, now.counters = (Counter *)counters, now.done = done, now.room = room, now.size = size;
    now.num_panels = (out + PANEL - 1) / PANEL;
    in_threads(work, present, num_present);
}

static void yield(int number) { (void)number, sched_yield(); }

/* The present threads take all panels, for this many rounds, and are made to switch at any instruction. */
void race(const int64_t *counters, const int64_t *present, int64_t *done, int64_t num_present, int64_t size,
          int64_t num_panels, int64_t rounds) {
    now.counters = aligned_alloc(sizeof(Counter), (size_t)size * sizeof(Counter));
    now.done = done, now.size = size, now.num_panels = num_panels;
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = yield, .sa_flags = SA_RESTART}, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 50}, {0, 50}}, NULL);
    for (int64_t i = 0; i < rounds; i++) {
        memcpy(now.counters, counters, (size_t)size * sizeof(Counter));
        in_threads(take_all, present, num_present);
    }
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
    free(now.counters);
}
