/* How threads wait for each other; see team.h. */
#include "team.h"
#include <time.h>
#ifdef __x86_64__
#define PAUSE __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE __asm__ volatile("yield")
#else
#define PAUSE
#endif

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Wait until a counter has reached a value: spin first, then sleep.
 *
 * No wake-up is lost: a waiter counts itself among the sleepers before it looks at the counter, and the other thread
 * changes the counter before it looks at `sleepers`. SEQ_CST puts all of this into one order, so one sees the other. */
static void await(Shared *s, const Counter *counter, int64_t value) {
    const int64_t start = now();
    do
        for (int i = 0; i < 32; i++) {
            if (__atomic_load_n(&counter->value, __ATOMIC_ACQUIRE) >= value) return;
            PAUSE;
        }
    while (now() - start < SPIN);
    pthread_mutex_lock(&s->lock);
    __atomic_fetch_add(&s->sleepers.value, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&counter->value, __ATOMIC_SEQ_CST) < value) pthread_cond_wait(&s->wake, &s->lock);
    __atomic_fetch_sub(&s->sleepers.value, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&s->lock);
}

static void wake(Shared *s) {
    if (__atomic_load_n(&s->sleepers.value, __ATOMIC_SEQ_CST) == 0) return;
    pthread_mutex_lock(&s->lock);
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

void barrier(const Team *team) {
    Shared *s = team->shared;
    if (team->size == 1) {
        s->taken[0].value = 0;
        return;
    }
    const int64_t number = __atomic_load_n(&s->barriers.value, __ATOMIC_ACQUIRE) + 1;
    if (__atomic_add_fetch(&s->arrived.value, 1, __ATOMIC_SEQ_CST) < number * team->size) {
        await(s, &s->barriers, number);
        return;
    }
    for (int v = 0; v < team->size; v++) s->taken[v].value = 0;
    __atomic_store_n(&s->barriers.value, number, __ATOMIC_SEQ_CST);
    wake(s);
}

void leave(const Team *team) {
    Shared *s = team->shared;
    const int64_t all = (__atomic_load_n(&s->barriers.value, __ATOMIC_ACQUIRE) + 1) * team->size;
    __atomic_add_fetch(&s->arrived.value, 1, __ATOMIC_SEQ_CST);
    if (team->rank == 0) await(s, &s->arrived, all);
    else wake(s);
    fesetenv(&team->outside);
}
