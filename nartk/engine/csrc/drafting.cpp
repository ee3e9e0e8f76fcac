// Chains that a model drafts by itself: pass after pass, in each of which a row reads its newest token.
#include "engine.h"

#include <algorithm>
#include <numeric>

namespace nartk {

namespace {

// A row, whose draft the next pass goes on with.
struct Going {
    int row, begin, size;  // row of the chains; where what it reads begins, and how much that is
    int position;          // of the first of it
};

// The same list of words after each of `most` tokens.
struct Lists {
    std::vector<int> offsets, words;

    Lists(const ChainRule& rule, int most) : offsets(most + 1) {
        words.reserve((size_t)most * rule.word_count);
        for (int i = 0; i < most; i++) {
            words.insert(words.end(), rule.words, rule.words + rule.word_count);
            offsets[i + 1] = (int)words.size();
        }
    }
};

}  // namespace

std::vector<Chain> Engine::draft(const Chains& chains, const ChainRule& rule) {
    for (int b = 0; b < chains.count; b++) {
        if (chains.most[b] < 1) throw PassFault("row " + number(b) + " drafts " + number(chains.most[b]) + " tokens");
        if (chains.offsets[b] >= chains.offsets[b + 1]) throw PassFault("row " + number(b) + " reads no token");
    }
    const std::vector<int> before = cells.lengths(chains.contexts, chains.count);
    const Lists lists(rule, chains.count);
    std::vector<Chain> made(chains.count);
    std::vector<double> sums(chains.count, 0.0);
    std::vector<int> read(chains.tokens, chains.tokens + chains.offsets[chains.count]);
    std::vector<Going> going;
    for (int b = 0; b < chains.count; b++)
        going.push_back({b, chains.offsets[b], chains.offsets[b + 1] - chains.offsets[b], before[b]});
    const auto step = [&] {
        std::vector<int> words, positions, memories, contexts, parents;
        Want want;
        for (const Going& each : going) {
            for (int i = 0; i < each.size; i++) {
                words.push_back(read[each.begin + i]);
                positions.push_back(each.position + i);
                memories.push_back(chains.memories[each.row]);
                contexts.push_back(chains.contexts[each.row]);
                parents.push_back(i ? (int)words.size() - 2 : -1);
            }
            want.only.push_back((int)words.size() - 1);
        }
        if (rule.word_count) {
            want.word_offsets = lists.offsets.data();
            want.words = lists.words.data();
        }
        const int count = (int)words.size();
        Read found;
        found.head = network->output;
        const auto pending = run(
            {count, words.data(), positions.data(), memories.data(), contexts.data(), parents.data()}, want, found);
        std::vector<int> all(count);
        std::iota(all.begin(), all.end(), 0);
        cells.end(*pending, all.data(), count);
        read = found.best;
        std::vector<Going> left;
        for (int i = 0; i < (int)going.size(); i++) {
            const auto [b, begin, size, position] = going[i];
            Chain& chain = made[b];
            chain.passes++;
            if (!(found.log_probs[i] >= rule.least_likely)) continue;
            chain.words.push_back(found.best[i]);
            chain.log_probs.push_back(found.log_probs[i]);
            sums[b] += found.log_probs[i];
            const bool ends = std::find(rule.ends, rule.ends + rule.end_count, found.best[i]) !=
                              rule.ends + rule.end_count;
            if (!ends && (int)chain.words.size() < chains.most[b] && sums[b] >= rule.least)
                left.push_back({b, i, 1, position + size});
        }
        going = std::move(left);
    };
    try {
        while (!going.empty()) step();
    } catch (...) {
        try {
            cells.truncate(chains.contexts, before.data(), chains.count);
        } catch (...) {  // a context was closed meanwhile: what broke off is what is told
        }
        throw;
    }
    return made;
}

}  // namespace nartk
