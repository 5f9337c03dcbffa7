/* The threads that compute a step together.
 *
 * OpenMP starts them, once for a whole step; how they share its work and wait for each other is here. Between
 * two layers all have to meet, some hundred times a step, and OpenMP's threads would spin while they wait:
 * the fastest way as long as each has a core to itself. But if another program has one of the cores, the
 * thread that is waited for may not be running, and for some milliseconds the others would spin in vain, each
 * time. So here
 *
 * - nobody has a fixed share: a thread takes its own run of the work piece by piece, and then what is left of
 *   others' runs;
 * - who waits spins for SPIN nanoseconds, as long as a wait is when all threads run, and then sleeps: its
 *   core is free, and the system moves the thread that is waited for to it.
 *
 * Source: the first is work stealing (Blumofe and Leiserson 1999), the second "spin then block" (Karlin et
 * al. 1991, "Empirical Studies of Competitive Spinning for a Shared-Memory Multiprocessor").
 */
#ifndef TEAM_H
#define TEAM_H
#include <pthread.h>
#include <stdint.h>
#ifdef _OPENMP /* omp.h is not where every compiler looks: macOS has the library, which torch brings, and no header */
int omp_get_thread_num(void);
int omp_get_num_threads(void);
#endif

#define SPIN 20000     /* nanoseconds */
#define MAX_THREADS 64 /* of a team */

/* A counter that has a line of the CPU's cache to itself. */
typedef struct { _Alignas(64) int64_t value; } Counter;

/* What the threads share; a step has one. */
typedef struct {
    Counter taken[MAX_THREADS]; /* pieces of each thread's run */
    Counter arrived, meetings, sleepers;
    pthread_mutex_t lock;
    pthread_cond_t wake;
} Shared;

/* What each of them knows. */
typedef struct {
    Shared *shared;
    int me, all;
} Team;

/* Do something in `threads` threads, each with its `team`. */
#define TOGETHER_DO(threads, ...) \
    do { \
        Shared shared = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER}; \
        const int team_size = (threads) < MAX_THREADS ? (threads) : MAX_THREADS; \
        _Pragma("omp parallel num_threads(team_size)") { \
            const Team self = join(&shared), *team = &self; \
            __VA_ARGS__ \
            leave(team); \
        } \
    } while (0)

/* For each i below n, in one of the threads: its own run of them first, then what is left of the others'. */
#define EACH(i, n, team) \
    for (int run_##i = 0; run_##i < (team)->all; run_##i++) \
        for (int64_t i = take(team, run_##i, n); i >= 0; i = take(team, run_##i, n))

/* For each i below n, in one of the threads, in this order: for unequal pieces, the large ones first. */
#define IN_ORDER(i, n, team) \
    for (int64_t i = count_up(team); i < (n); i = count_up(team))

static inline int64_t count_up(const Team *team) {
    return __atomic_fetch_add(&team->shared->taken[0].value, 1, __ATOMIC_RELAXED);
}

static inline Team join(Shared *shared) {
#ifdef _OPENMP
    return (Team){shared, omp_get_thread_num(), omp_get_num_threads()};
#else
    return (Team){shared, 0, 1};
#endif
}

/* Thread v's run of n pieces begins here; it ends where the next one's begins. */
static inline int64_t run_of(const Team *team, int v, int64_t n) { return n * v / team->all; }

/* The next piece of the run that is `further` behind the thread's own one; -1 if none is left. */
static inline int64_t take(const Team *team, int further, int64_t n) {
    const int v = (team->me + further) % team->all;
    const int64_t taken = __atomic_fetch_add(&team->shared->taken[v].value, 1, __ATOMIC_RELAXED);
    const int64_t i = run_of(team, v, n) + taken;
    return i < run_of(team, v + 1, n) ? i : -1;
}

void meet(const Team *team);  /* Wait until all threads are here; then pieces are counted anew. */
void leave(const Team *team); /* The last meeting: only thread 0 waits. */
#endif
