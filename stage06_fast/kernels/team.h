/* The threads that compute a step together.
 *
 * OpenMP starts them once for each step; they share the work and wait for each other by the functions below. They all
 * meet after each kernel, a hundred times a step. OpenMP's threads spin while they wait, which is fastest as long as
 * each has a core to itself. But if another program takes one of the cores, the last thread may not be running, and
 * each time the others spin in vain for some milliseconds. So here
 *
 * - there are no fixed shares: a thread takes its own run of the work piece by piece, then what is left of the others';
 * - a waiting thread spins for SPIN nanoseconds, as long as a wait takes when all threads run. Then it sleeps, and the
 *   system can move the missing thread to its core.
 *
 * The first is work stealing (Blumofe and Leiserson 1999), the second "spin then block" (Karlin et al. 1991, "Empirical
 * Studies of Competitive Spinning for a Shared-Memory Multiprocessor").
 */
#ifndef TEAM_H
#define TEAM_H
#include <fenv.h>
#include <pthread.h>
#include <stdint.h>
#ifdef _OPENMP /* not by omp.h: on macOS, torch brings the library without the header */
int omp_get_thread_num(void);
int omp_get_num_threads(void);
#endif

#define SPIN 100000    /* nanoseconds */
#define MAX_THREADS 64 /* of a team */

/* A counter with a cache line to itself. */
typedef struct { _Alignas(64) int64_t value; } Counter;

/* What the threads of a step share. */
typedef struct {
    Counter taken[MAX_THREADS]; /* pieces of each thread's run; for DYNAMIC_FOR, the first counts them all */
    Counter arrived, barriers, sleepers; /* arrivals at all barriers so far; barriers that are over; threads asleep */
    pthread_mutex_t lock;
    pthread_cond_t wake;
} Shared;

/* What each thread knows. */
typedef struct {
    Shared *shared;
    int rank, size;
    fenv_t outside; /* how it rounds outside the step */
} Team;

/* Run a statement in `threads` threads, each with its own `team`. */
#define PARALLEL(threads, ...) \
    do { \
        Shared shared = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER}; \
        const int team_size = (threads) < MAX_THREADS ? (threads) : MAX_THREADS; \
        _Pragma("omp parallel num_threads(team_size)") { \
            const Team self = join(&shared), *team = &self; \
            __VA_ARGS__ \
            leave(team); \
        } \
    } while (0)

/* For each i < n, in one of the threads. A thread takes its own run first, then what is left of the others'. There is
 * one loop between two barriers, because the counters begin at 0 after a barrier. */
#define PARALLEL_FOR(i, n, team) \
    for (int run_##i = 0; run_##i < (team)->size; run_##i++) \
        for (int64_t i = take(team, run_##i, n); i >= 0; i = take(team, run_##i, n))

/* The same with all threads taking pieces in order: for pieces of unequal sizes, the large ones first. */
#define DYNAMIC_FOR(i, n, team) \
    for (int64_t i = count_up(team); i < (n); i = count_up(team))

static inline int64_t count_up(const Team *team) {
    return __atomic_fetch_add(&team->shared->taken[0].value, 1, __ATOMIC_RELAXED);
}

/* All threads round in the usual way, whatever the program told one of them, as torch.set_flush_denormal does. */
static inline Team join(Shared *shared) {
#ifdef _OPENMP
    Team team = {.shared = shared, .rank = omp_get_thread_num(), .size = omp_get_num_threads()};
#else
    Team team = {.shared = shared, .size = 1};
#endif
    fegetenv(&team.outside);
    fesetenv(FE_DFL_ENV);
    return team;
}

/* Where thread v's run of n pieces begins; it ends where the next one's begins. */
static inline int64_t run_of(const Team *team, int v, int64_t n) { return n * v / team->size; }

/* The next piece of the run `further` places after the thread's own; -1 if none is left. */
static inline int64_t take(const Team *team, int further, int64_t n) {
    const int v = (team->rank + further) % team->size;
    const int64_t taken = __atomic_fetch_add(&team->shared->taken[v].value, 1, __ATOMIC_RELAXED);
    const int64_t i = run_of(team, v, n) + taken;
    return i < run_of(team, v + 1, n) ? i : -1;
}

void barrier(const Team *team); /* Wait for all threads; then pieces are counted from 0 again. */
void leave(const Team *team); /* The last barrier. Only thread 0 waits: else it would spin in OpenMP for the others. */
#endif
