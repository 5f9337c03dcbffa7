/* A solution of exercise 6.5. */
#include "linear.h"

/* A panel that nobody has taken, for thread `me` of `all`; -1 if there is none. Any threads may call it at once. */
int64_t take(Counter *counters, int64_t me, int64_t all, int64_t num_panels) {
    for (int64_t further = 0; further < all; further++) {
        const int64_t v = (me + further) % all;
        const int64_t first = num_panels * v / all, end = num_panels * (v + 1) / all;
        const int64_t panel = first + __atomic_fetch_add(&counters[v].taken, 1, __ATOMIC_RELAXED);
        if (panel < end) return panel;
    }
    return -1;
}

/* What thread `me` of `all` does for a layer. It returns when no panel is left to take. */
void work_on(const Layer *layer, Counter *counters, int64_t me, int64_t all) {
    const int64_t num_panels = (layer->out + PANEL - 1) / PANEL;
    for (int64_t panel; (panel = take(counters, me, all, num_panels)) >= 0;) one_panel(layer, panel);
}
