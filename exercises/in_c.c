/* The main program around an answer in C. It reads calls from stdin, makes them, and replies (see in_c.py).
 *
 * AddressSanitizer finds what is read or written outside an array, because each one is allocated in its exact size. An
 * array whose pages are counted is closed to all access instead: the first touch of a page is a signal, which notes the
 * page and opens it, and closes the one that was opened first. So we see what a cache of `keep` pages would fetch. */
#include <sanitizer/asan_interface.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARRAYS 12
#define KEPT 64         /* pages that are open at most */
#define NOTED (1 << 16) /* pages that are noted at most */

enum { DONE, NOT_WRITTEN, OUTSIDE }; /* kinds of a reply, as in in_c.py */

int64_t call(const char *name, const int64_t *arguments); /* made by in_c.py; an array is passed by its address */

static struct { char *data; int64_t size; } arrays[ARRAYS];
static int64_t num_arrays, allocated;
static int replies;

static void send(const void *data, int64_t size) {
    for (ssize_t sent; size; data = (const char *)data + sent, size -= sent)
        if ((sent = write(replies, data, (size_t)size)) < 0) _exit(1);
}

static void reply(int64_t kind, int64_t first, int64_t second, int64_t third) {
    send((int64_t[]){kind, first, second, third}, 32);
}

static void receive(void *data, int64_t size) {
    if (size && fread(data, (size_t)size, 1, stdin) != 1) exit(0); /* no more calls */
}

_Noreturn void not_written(int line) {
    reply(NOT_WRITTEN, line, 0, 0);
    exit(1);
}

/* Called by AddressSanitizer before it reports and ends the program: which array is nearest, and where. */
void __asan_on_error(void) {
    const char *at = __asan_get_report_address();
    int64_t nearest = -1, least = 4096; /* bytes */
    for (int64_t i = 0; i < num_arrays; i++) {
        const int64_t before = arrays[i].data - at, after = at - (arrays[i].data + arrays[i].size - 1);
        const int64_t away = before > after ? before : after;
        if (away < least) nearest = i, least = away;
    }
    if (nearest >= 0) reply(OUTSIDE, nearest, at - arrays[nearest].data, __asan_get_report_access_type());
}

int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void *, size_t), void (*)(const volatile void *));

static void count_allocated(const volatile void *data, size_t size) { (void)data, allocated += (int64_t)size; }
static void freed(const volatile void *data) { (void)data; }

/* --- Pages that are counted --- */

static char *pages;
static int64_t page, num_pages, keep, num_fetched, open_pages[KEPT];
static int32_t fetched[NOTED];
static struct sigaction by_sanitizer;

static void fetch(int number, siginfo_t *info, void *context) {
    const int64_t wanted = ((char *)info->si_addr - pages) / page;
    (void)context;
    if ((char *)info->si_addr < pages || wanted >= num_pages) sigaction(number, &by_sanitizer, NULL); /* a mistake */
    else {
        int64_t *slot = &open_pages[num_fetched % keep];
        if (num_fetched >= keep) mprotect(pages + *slot * page, (size_t)page, PROT_NONE);
        mprotect(pages + wanted * page, (size_t)page, PROT_READ | PROT_WRITE);
        if (num_fetched < NOTED) fetched[num_fetched] = (int32_t)wanted;
        *slot = wanted, num_fetched++;
    }
}

static char *counted(int64_t size) {
    num_pages = (size + page - 1) / page, num_fetched = 0;
    pages = mmap(NULL, (size_t)(num_pages * page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages;
}

/* --- */

int main(void) {
    static char buffer[1 << 12], name[32];
    const struct sigaction counting = {.sa_sigaction = fetch, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    replies = dup(1), dup2(2, 1); /* an answer may print */
    setvbuf(stdout, buffer, _IOLBF, sizeof buffer);
    page = sysconf(_SC_PAGESIZE);
    __sanitizer_install_malloc_and_free_hooks(count_allocated, freed);
    while (1) {
        int64_t head[3], arguments[ARRAYS] = {0}; /* how many arguments; which array is counted, or -1; pages to keep */
        receive(name, sizeof name), receive(head, sizeof head);
        keep = head[2], num_fetched = 0, num_arrays = 0;
        for (int64_t i = 0; i < head[0]; i++) {
            int64_t size; /* of an array, or -1 for a number */
            receive(&size, 8);
            if (size < 0) {
                receive(&arguments[i], 8);
                continue;
            }
            char *data = num_arrays == head[1] ? counted(size) : malloc((size_t)size);
            receive(data, size);
            arrays[num_arrays].data = data, arrays[num_arrays++].size = size;
            arguments[i] = (int64_t)(intptr_t)data;
        }
        if (keep) {
            mprotect(pages, (size_t)(num_pages * page), PROT_NONE);
            sigaction(SIGSEGV, &counting, &by_sanitizer), sigaction(SIGBUS, &counting, NULL);
        }
        allocated = 0;
        const int64_t result = call(name, arguments), memory = allocated;
        if (keep) {
            mprotect(pages, (size_t)(num_pages * page), PROT_READ);
            sigaction(SIGSEGV, &by_sanitizer, NULL), sigaction(SIGBUS, &by_sanitizer, NULL);
        }
        reply(DONE, result, memory, num_fetched < NOTED ? num_fetched : NOTED);
        for (int64_t i = 0; i < num_arrays; i++) {
            send(arrays[i].data, arrays[i].size);
            if (i != head[1]) free(arrays[i].data);
        }
        send(fetched, 4 * (num_fetched < NOTED ? num_fetched : NOTED));
        if (keep) munmap(pages, (size_t)(num_pages * page));
    }
}
