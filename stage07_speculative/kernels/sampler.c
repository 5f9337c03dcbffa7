/* The sampler: the steps of sampler.py's `choose` for all rows of a step, and the rows' log-probabilities. Each row is
 * one thread's. The vocabulary is not sorted: what is kept follows from the k-th best score, and from the weight at
 * which the likeliest tokens reach top_p.
 *
 * The arithmetic is that of sampler.py: scores in float32, their exponentials (`weights`) and all sums in float64. */
#include <math.h>
#include "kernels.h"

enum {
    HALF = LANES / 2, /* float64s in a vector */
    PIECE = 64,       /* tokens that are skipped together */
    CHUNK = 512,      /* tokens whose weights are summed together, a whole number of pieces */
    DIGITS = 4096     /* values of a digit: see DIGIT */
};
typedef double dvec __attribute__((vector_size(8 * HALF), aligned(8), may_alias));
typedef int64_t lvec __attribute__((vector_size(8 * HALF), aligned(8), may_alias));
typedef int32_t ivec_half __attribute__((vector_size(4 * HALF), aligned(4), may_alias));
typedef float halfvec __attribute__((vector_size(4 * HALF), aligned(4), may_alias));

/* A thread's memory, for a vocabulary of n tokens. */
typedef struct {
    double *weights;   /* [n + PIECE], of the candidates: tokens that may be kept, in the order of their ids */
    double *sums;      /* of the weights with each digit, or of each chunk */
    float *scores;     /* [n], where penalties change the logits */
    float *best;       /* [n], the k best so far: a heap, the worst of them first */
    int32_t *ids;      /* [n], the candidates'; where these are whole pieces, only the first token's of each */
    int32_t *best_ids; /* [n], the tokens of `best` */
    int32_t *members;  /* [n + 1], places in `weights`: the candidates that a cut is searched in */
} Memory;

static int64_t num_sums(int64_t n) { return n / CHUNK < DIGITS ? DIGITS : n / CHUNK + 1; }

static Memory memory_of(char *bytes, int64_t n) {
    double *weights = (double *)bytes, *sums = weights + n + PIECE;
    float *scores = (float *)(sums + num_sums(n)), *best = scores + n;
    int32_t *ids = (int32_t *)(best + n);
    return (Memory){weights, sums, scores, best, ids, ids + n, ids + 2 * n};
}
int64_t sampler_bytes(int64_t vocab_size) {
    return round_up(28 * vocab_size + 4 + 8 * (PIECE + num_sums(vocab_size)), 64);
}

/* --- Exponentials ------------------------------------------------------------------------------------------------- */

INLINE dvec splat_double(double x) { return x - (dvec){0}; }

INLINE int any(lvec mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi64_mask((__m512i)mask, (__m512i)mask) != 0;
#else
    int64_t found = 0;
    for (int i = 0; i < HALF; i++) found |= mask[i];
    return found != 0;
#endif
}

INLINE dvec fused(dvec sum, dvec a, dvec b) { /* sum + a * b; spelled out as in vectors.h */
#if defined(__AVX512F__)
    return (dvec)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)sum);
#elif defined(__FMA__) && LANES == 8
    typedef double m256d __attribute__((vector_size(32)));
    return (dvec)__builtin_ia32_vfmaddpd256((m256d)a, (m256d)b, (m256d)sum);
#elif defined(__aarch64__)
    return (dvec)vfmaq_f64((float64x2_t)sum, (float64x2_t)a, (float64x2_t)b);
#else
    return sum + a * b;
#endif
}

#define LOWEST -700.0f /* lower scores become LOWEST: e^-700 is near the smallest float64 */
#define NOTHING 0x1p-100 /* too little to change a sum of weights, of which one is 1 */

/* e^x for LOWEST <= x <= 0: 2^n e^r, where |r| <= ln(2) / 2. The coefficients are the minimax polynomial's, with a
 * relative error of 4e-18. */
INLINE dvec exponential_double(dvec x) {
    static const double coefficients[] = {
        0x1.af632a0f7e2cep-26, 0x1.28b4101c77212p-22, 0x1.71ddf56d8deb5p-19, 0x1.a01991a10d9aep-16,
        0x1.a01a01b1461c5p-13, 0x1.6c16c1880029fp-10, 0x1.111111110f21ep-7, 0x1.555555554f0bap-5,
        0x1.555555555555ap-3, 0x1.0000000000011p-1, 0x1.0000000000000p+0, 0x1.0000000000000p+0};
    const dvec magic = splat_double(0x1.8p52);
    const dvec shifted = fused(magic, x, splat_double(0x1.71547652b82fep0)); /* n is in the lowest bits */
    const dvec n = shifted - magic; /* x / ln(2), rounded */
    const dvec r = fused(fused(x, n, splat_double(-0x1.62e42fefa39efp-1)), n, splat_double(-0x1.abc9e3b39803fp-56));
    dvec sum = splat_double(coefficients[0]);
    for (int i = 1; i < 12; i++) sum = fused(splat_double(coefficients[i]), sum, r);
    const dvec scale = (dvec)(((lvec)shifted << 52) + (lvec)splat_double(1.0)); /* 2^n: the exponent's bits */
    return sum * scale;
}

/* The scores of a row: (logit - maximum) / temperature, for `count` tokens. */
typedef struct {
    const float *logits;
    float maximum, temperature;
    int64_t count;
} Scores;

/* HALF scores from i on; -inf past the last one. */
INLINE halfvec some_scores(const Scores *s, int64_t i) {
    halfvec x;
    if (i + HALF <= s->count) {
        x = *(const halfvec *)(s->logits + i);
    } else {
        x = -INFINITY - (halfvec){0};
        memcpy(&x, s->logits + i, sizeof(float) * (size_t)(s->count - i));
    }
    x = (x - s->maximum) / s->temperature;
    const ivec_half low = x < LOWEST;
    return (halfvec)(((ivec_half)x & ~low) | ((ivec_half)(LOWEST - (halfvec){0}) & low));
}

/* The sum of a chunk's weights. Stores them in `weights`, unless it is NULL. */
INLINE double sum_of_chunk(const Scores *s, int64_t from, double *weights) {
    dvec sum = {0};
    for (int64_t i = from; i < from + CHUNK && i < s->count; i += HALF) {
        const dvec w = exponential_double(__builtin_convertvector(some_scores(s, i), dvec));
        sum += w;
        if (weights && i + HALF <= s->count) *(dvec *)(weights + i - from) = w;
        else if (weights) memcpy(weights + i - from, &w, sizeof(double) * (size_t)(s->count - i));
    }
    double total = 0;
    for (int i = 0; i < HALF; i++) total += sum[i];
    return total;
}

INLINE double sum_of_weights(const Scores *s, double *weights) {
    double total = 0;
    for (int64_t from = 0; from < s->count; from += CHUNK)
        total += sum_of_chunk(s, from, weights ? weights + from : NULL);
    return total;
}

/* --- Selection ---------------------------------------------------------------------------------------------------- */

/* The position of the largest number, the first if there are several; -1 if it is infinite, or if any is NaN. Finds the
 * maximum piece by piece, then searches only the piece that has it. */
static int64_t argmax(const float *row, int64_t count) {
    float maximum = -INFINITY;
    int64_t where = 0;
    ivec nans = {0};
    int nan = 0;
    for (int64_t from = 0; from < count; from += CHUNK) {
        const int64_t end = count - from < CHUNK ? count : from + CHUNK;
        vec largest = splat(-INFINITY);
        int64_t c = from;
        for (; c + LANES <= end; c += LANES) {
            const vec x = load(row + c);
            largest = larger(x, largest), nans |= x != x;
        }
        float here = largest_of(largest);
        for (; c < end; c++) here = row[c] > here ? row[c] : here, nan |= row[c] != row[c];
        if (here > maximum) maximum = here, where = from;
    }
    for (int i = 0; i < LANES; i++) nan |= nans[i];
    while (!nan && where + 1 < count && row[where] < maximum) where++;
    return !nan && row[where] - row[where] == 0 ? where : -1;
}

/* The largest of PIECE numbers from i on. */
INLINE float largest_from(const float *row, int64_t i, int64_t count) {
    if (i + PIECE > count) {
        float largest = row[i];
        for (int64_t j = i; j < count; j++) largest = row[j] > largest ? row[j] : largest;
        return largest;
    }
    vec largest = load(row + i);
    for (int j = LANES; j < PIECE; j += LANES) largest = larger(load(row + i + j), largest);
    return largest_of(largest);
}

/* Whether heap entry a is worse than b: smaller, or equal and later in the vocabulary. */
INLINE int worse(const Memory *m, int64_t a, int64_t b) {
    return m->best[a] < m->best[b] || (m->best[a] == m->best[b] && m->best_ids[a] > m->best_ids[b]);
}

static void sift_down(Memory *m, int64_t at, int64_t count) {
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && worse(m, child + 1, child)) child++;
        if (!worse(m, child, at)) return;
        const float value = m->best[at];
        const int32_t id = m->best_ids[at];
        m->best[at] = m->best[child], m->best_ids[at] = m->best_ids[child];
        m->best[child] = value, m->best_ids[child] = id;
    }
}

/* Put the k best of a row into the heap, whose first entry is the worst of them. Of equal ones, the first are kept. */
static void find_best(Memory *m, const float *row, int64_t count, int64_t k) {
    for (int64_t i = 0; i < k; i++) m->best[i] = row[i], m->best_ids[i] = (int32_t)i;
    for (int64_t i = k / 2 - 1; i >= 0; i--) sift_down(m, i, k);
    for (int64_t i = k; i < count; i += PIECE) {
        if (largest_from(row, i, count) <= m->best[0]) continue;
        for (int64_t j = i; j < i + PIECE && j < count; j++)
            if (row[j] > m->best[0]) m->best[0] = row[j], m->best_ids[0] = (int32_t)j, sift_down(m, 0, k);
    }
}

/* Find the candidates, here tokens with at least this score: their ids, and their weights. Returns how many there are.
 * Their scores overwrite `best`. */
static int64_t candidates_by_score(Memory *m, const Scores *s, float least) {
    int64_t count = 0;
    for (int64_t from = 0; from < s->count; from += PIECE) {
        if ((largest_from(s->logits, from, s->count) - s->maximum) / s->temperature < least) continue;
        float piece[PIECE];
        for (int i = 0; i < PIECE && from + i < s->count; i += HALF) {
            const halfvec x = some_scores(s, from + i);
            memcpy(piece + i, &x, sizeof x);
        }
        for (int i = 0; i < PIECE && from + i < s->count; i++) { /* without a branch, which the CPU could not predict */
            m->ids[count] = (int32_t)(from + i), m->best[count] = piece[i];
            count += piece[i] >= least;
        }
    }
    const Scores found = {m->best, 0, 1, count};
    sum_of_weights(&found, m->weights);
    return count;
}

/* Weights are grouped by digits of 12 bits. The first digit has 7 bits of the exponent, in which alone numbers from
 * 2^-100 to 1 differ, and 5 of the mantissa; the next ones have the rest of the mantissa, from left to right. Of two
 * weights with the same digits so far, the larger one has the larger next digit. */
#define DIGIT(word, shift) ((int)((shift) < 0 ? (word) & (DIGITS / 2 - 1) : (word) >> (shift) & (DIGITS - 1)))
enum { FIRST_SHIFT = 47, DIGIT_BITS = 12, LAST_SHIFT = -1 };

/* The first digits of HALF weights; 0 for those below `least`. It is over 2^-100, so the others' digits are not 0. */
INLINE lvec first_digits(const double *weights, double least) {
    const dvec w = *(const dvec *)weights;
    return ((lvec)w >> FIRST_SHIFT & (DIGITS - 1)) & (w >= least);
}

/* Find the candidates, here whole pieces in which some token weighs at least `least`: ids of their first tokens, all
 * their weights, and the sums of weights from `least` on by first digit. Returns the sum of all weights. */
static double candidates_by_weight(Memory *m, const Scores *s, double least, int64_t *count) {
    double total = 0, chunk[CHUNK];
    memset(m->sums, 0, sizeof(double) * DIGITS);
    *count = 0;
    for (int64_t from = 0; from < s->count; from += CHUNK) {
        if (s->count - from < CHUNK) memset(chunk, 0, sizeof chunk);
        total += sum_of_chunk(s, from, chunk);
        for (int piece = 0; piece < CHUNK && from + piece < s->count; piece += PIECE) {
            int is_candidate = 0;
            for (int i = piece; i < piece + PIECE; i += HALF) {
                const lvec digits = first_digits(chunk + i, least);
                if (!any(digits)) continue;
                is_candidate = 1;
                for (int j = 0; j < HALF; j++) m->sums[digits[j]] += chunk[i + j];
            }
            if (!is_candidate) continue;
            memcpy(m->weights + *count, chunk + piece, sizeof(double) * PIECE);
            m->ids[*count / PIECE] = (int32_t)(from + piece);
            *count += PIECE;
        }
    }
    m->sums[0] = 0; /* of weights below `least` */
    return total;
}

/* The digit at which a running sum, from the highest digit down, reaches `needed`. The sum begins with `above`, to
 * which the sums of the larger digits are added. */
static int digit_that_reaches(const double *sums, int highest, double *above, double needed) {
    int chosen = highest;
    for (int d = highest; d >= 0; d--) {
        if (sums[d] == 0) continue;
        chosen = d;
        if (*above + sums[d] >= needed) return chosen;
        *above += sums[d];
    }
    *above -= sums[chosen]; /* rounding left the whole sum below `needed`: take the last digit */
    return chosen;
}

/* What top_p keeps, the fewest tokens that weigh at least `needed` together: all above a weight, and those of just this
 * weight up to a place in `weights`. */
typedef struct { double weight; int64_t last; } Cut;

/* Find the cut, by radix selection. Members are the candidates that share the cut's leading digits; each turn finds its
 * next digit. above: the sum of all larger weights. */
static Cut find_cut(Memory *m, int64_t num_members, int shift, double above, double needed) {
    for (; shift > LAST_SHIFT - DIGIT_BITS && num_members > 1; shift -= DIGIT_BITS) {
        int highest = 0;
        uint64_t word;
        memset(m->sums, 0, sizeof(double) * DIGITS);
        for (int64_t i = 0; i < num_members; i++) {
            memcpy(&word, &m->weights[m->members[i]], 8);
            const int digit = DIGIT(word, shift);
            m->sums[digit] += m->weights[m->members[i]];
            highest = digit > highest ? digit : highest;
        }
        const int chosen = digit_that_reaches(m->sums, highest, &above, needed);
        int64_t kept = 0;
        for (int64_t i = 0; i < num_members; i++) {
            memcpy(&word, &m->weights[m->members[i]], 8);
            m->members[kept] = m->members[i];
            kept += DIGIT(word, shift) == chosen;
        }
        num_members = kept;
    }
    int64_t last = m->members[0];
    const double weight = m->weights[last];
    for (int64_t i = 0; i < num_members; i++) {
        last = m->members[i];
        above += weight;
        if (above >= needed) break;
    }
    return (Cut){weight, last};
}

/* The cut among the candidates of candidates_by_score. Weights of next to nothing become 0, as digits can't hold
 * them. */
static Cut cut_of_candidates(Memory *m, int64_t count, double needed) {
    for (int64_t i = 0; i < count; i++) {
        m->members[i] = (int32_t)i;
        if (m->weights[i] < NOTHING) m->weights[i] = 0;
    }
    return find_cut(m, count, FIRST_SHIFT, 0, needed);
}

/* The same for candidates_by_weight, which has the sums by first digit already. */
static Cut cut_of_pieces(Memory *m, int64_t count, double least, double needed) {
    double above = 0;
    const int chosen = digit_that_reaches(m->sums, DIGITS - 1, &above, needed);
    int64_t num_members = 0;
    for (int64_t i = 0; i < count; i += HALF) {
        const lvec found = first_digits(m->weights + i, least) == chosen;
        if (!any(found)) continue;
        for (int j = 0; j < HALF; j++) m->members[num_members] = (int32_t)(i + j), num_members += found[j] != 0;
    }
    return find_cut(m, num_members, FIRST_SHIFT - DIGIT_BITS, above, needed);
}

/* --- A row -------------------------------------------------------------------------------------------------------- */

/* The number that sampler.py draws with, from Philox4x32-10; see support/philox.py. */
static double uniform(uint64_t seed, uint64_t position) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32), c0 = (uint32_t)position;
    uint32_t c1 = (uint32_t)(position >> 32), c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)c0 * 0xD2511F53, p1 = (uint64_t)c2 * 0xCD9E8D57;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1, c3 = (uint32_t)p0;
        k0 += 0x9E3779B9, k1 += 0xBB67AE85;
    }
    return ((double)((uint64_t)c0 << 20 | c1 >> 12) + 0.5) / 0x1p52;
}

/* Lower the logits of used tokens, in a copy of the row. */
static const float *penalize(const Memory *m, const SampledRow *row, int64_t vocab_size) {
    float *scores = m->scores;
    memcpy(scores, row->logits, sizeof(float) * (size_t)vocab_size);
    const float repetition = (float)row->repetition_penalty;
    if (repetition != 1)
        for (int64_t i = 0; i < row->num_used; i++) {
            const int64_t id = row->used[i]; /* from the row: a token that is used twice is penalized once */
            scores[id] = row->logits[id] > 0 ? row->logits[id] / repetition : row->logits[id] * repetition;
        }
    if (row->frequency_penalty == 0 && row->presence_penalty == 0) return scores;
    int32_t *counts = m->members; /* by token; only those of the output's tokens are set */
    const int64_t *output = row->used + row->num_used - row->num_output;
    for (int64_t i = 0; i < row->num_output; i++) counts[output[i]] = 0;
    for (int64_t i = 0; i < row->num_output; i++) counts[output[i]]++;
    for (int64_t i = 0; i < row->num_output; i++) {
        const int64_t id = output[i];
        if (!counts[id]) continue;
        const volatile float frequency = (float)row->frequency_penalty * (float)counts[id]; /* rounded, not fused */
        scores[id] -= frequency + (float)row->presence_penalty;
        counts[id] = 0;
    }
    return scores;
}

/* The first token whose cumulative weight exceeds the fraction u of the whole. */
static int64_t draw_from_all(const Memory *m, const Scores *s, double u) {
    double total = 0, passed = 0, weights[CHUNK];
    for (int64_t from = 0; from < s->count; from += CHUNK) {
        m->sums[from / CHUNK] = sum_of_chunk(s, from, NULL);
        total += m->sums[from / CHUNK];
    }
    const double limit = u * total;
    int64_t from = 0;
    for (; from + CHUNK < s->count && passed + m->sums[from / CHUNK] <= limit; from += CHUNK)
        passed += m->sums[from / CHUNK];
    sum_of_chunk(s, from, weights);
    int64_t last = from;
    for (int64_t i = from; i < from + CHUNK && i < s->count; i++) {
        if (weights[i - from] < NOTHING) continue;
        last = i, passed += weights[i - from];
        if (passed > limit) break;
    }
    return last;
}

/* HALF weights from i on, with 0 for dropped ones and past the end. A weight is kept if it is at least `least`; one
 * equal to the cut's weight, only up to the cut's place. */
INLINE dvec kept_weights(const Memory *m, int64_t i, int64_t count, Cut cut, double least) {
    dvec w = {0};
    if (i + HALF <= count) w = *(const dvec *)(m->weights + i);
    else memcpy(&w, m->weights + i, sizeof(double) * (size_t)(count - i));
    lvec lanes;
    for (int j = 0; j < HALF; j++) lanes[j] = j;
    const lvec kept = (w >= least) & ((w != cut.weight) | (lanes <= cut.last - i));
    return (dvec)((lvec)w & kept);
}

/* A draw among the weights that the cut and min_p keep. Returns a place in `weights`. */
static int64_t draw_from_kept(const Memory *m, int64_t count, Cut cut, double min_p, double u) {
    const double least = cut.weight > min_p ? cut.weight : min_p;
    double total = 0, passed = 0;
    for (int64_t from = 0; from < count; from += CHUNK) {
        dvec sums = {0};
        double sum = 0;
        for (int64_t i = from; i < from + CHUNK && i < count; i += HALF) sums += kept_weights(m, i, count, cut, least);
        for (int j = 0; j < HALF; j++) sum += sums[j];
        m->sums[from / CHUNK] = sum, total += sum;
    }
    int64_t from = 0, last = 0;
    for (; from + CHUNK < count && passed + m->sums[from / CHUNK] <= u * total; from += CHUNK)
        passed += m->sums[from / CHUNK];
    for (int64_t i = from; i < count; i += HALF) {
        const dvec w = kept_weights(m, i, count, cut, least);
        for (int j = 0; j < HALF; j++) {
            if (w[j] < NOTHING) continue;
            last = i + j, passed += w[j];
            if (passed > u * total) return last;
        }
    }
    return last;
}

static int64_t choose(Memory *m, const SampledRow *row, int64_t vocab_size) {
    const int is_penalized = row->repetition_penalty != 1 || row->frequency_penalty != 0 || row->presence_penalty != 0;
    const float *logits = is_penalized ? penalize(m, row, vocab_size) : row->logits;
    const int64_t best = argmax(logits, vocab_size);
    if (best < 0 || row->temperature == 0) return best;
    const Scores s = {logits, logits[best], (float)row->temperature, vocab_size};
    const double u = uniform(row->seed, row->position);
    const int by_rank = row->top_k > 0 && row->top_k < vocab_size;
    if (!by_rank && row->top_p >= 1 && row->min_p <= 0) return draw_from_all(m, &s, u);

    int64_t count;
    if (!by_rank && row->top_p < 1) { /* what has less than (1 - p) / vocab_size of the probability is dropped anyway */
        const double least = (1 - row->top_p) / (double)vocab_size;
        const double total = candidates_by_weight(m, &s, least, &count);
        const Cut cut = cut_of_pieces(m, count, least, row->top_p * total);
        const int64_t place = draw_from_kept(m, count, cut, row->min_p, u);
        return m->ids[place / PIECE] + place % PIECE;
    }
    Cut cut = {0};
    if (by_rank) {
        find_best(m, logits, vocab_size, row->top_k);
        count = candidates_by_score(m, &s, (m->best[0] - s.maximum) / s.temperature);
        double total = 0;
        for (int64_t i = 0; i < count; i++) total += m->weights[i];
        cut.last = count;
        if (row->top_p < 1) cut = cut_of_candidates(m, count, row->top_p * total);
    } else {
        count = candidates_by_score(m, &s, (float)log(row->min_p) - 1e-3f); /* a few too many */
        cut.last = count;
    }
    return m->ids[draw_from_kept(m, count, cut, row->min_p, u)];
}

/* Log-probabilities and ranks by the raw logits, of the chosen token first, then of the likeliest ones. */
static void find_logprobs(Memory *m, const SampledRow *row, int64_t vocab_size) {
    const int64_t k = row->num_logprobs < vocab_size ? row->num_logprobs : vocab_size;
    const float chosen = row->raw[row->token_id];
    const int64_t first = argmax(row->raw, vocab_size);
    const Scores s = {row->raw, first < 0 ? NAN : row->raw[first], 1, vocab_size};
    const double log_sum = log(sum_of_weights(&s, NULL));
    int64_t rank = 1;
    for (int64_t from = 0; from < vocab_size; from += CHUNK) {
        int32_t larger_ones = 0;
        for (int64_t i = from; i < from + CHUNK && i < vocab_size; i++) larger_ones += row->raw[i] > chosen;
        rank += larger_ones;
    }
    row->top_ids[0] = row->token_id, row->ranks[0] = rank;
    row->logprobs[0] = (double)(chosen - s.maximum) - log_sum;
    if (k) find_best(m, row->raw, vocab_size, k);
    for (int64_t i = k; i > 0; i--) { /* the worst of the heap is the i-th best */
        row->top_ids[i] = m->best_ids[0];
        row->logprobs[i] = (double)(m->best[0] - s.maximum) - log_sum;
        m->best[0] = m->best[i - 1], m->best_ids[0] = m->best_ids[i - 1];
        sift_down(m, 0, i - 1);
    }
    for (int64_t i = 1; i <= k; i++) /* equal ones have the rank of the first */
        row->ranks[i] = i > 1 && row->raw[row->top_ids[i]] == row->raw[row->top_ids[i - 1]] ? row->ranks[i - 1] : i;
}

void score_rows(const Team *team, const float *logits, const int64_t *indices, int64_t num_rows, int64_t vocab_size,
                int64_t k, int64_t *ids, double *logprobs, int64_t *ranks, char *memory) {
    Memory m = memory_of(memory + team->rank * sampler_bytes(vocab_size), vocab_size);
    DYNAMIC_FOR(t, num_rows, team) {
        const SampledRow row = {.raw = logits + indices[t] * vocab_size, .token_id = indices[num_rows + t],
                                .num_logprobs = k, .top_ids = ids + t * (1 + k), .ranks = ranks + t * (1 + k),
                                .logprobs = logprobs + t * (1 + k)};
        find_logprobs(&m, &row, vocab_size);
    }
    barrier(team);
}

void sample_rows(const Team *team, SampledRow *rows, int64_t num_rows, int64_t vocab_size, char *memory) {
    Memory m = memory_of(memory + team->rank * sampler_bytes(vocab_size), vocab_size);
    DYNAMIC_FOR(t, num_rows, team) {
        rows[t].token_id = choose(&m, &rows[t], vocab_size);
        if (rows[t].token_id >= 0 && rows[t].num_logprobs >= 0) find_logprobs(&m, &rows[t], vocab_size);
    }
    barrier(team);
}
