// Views of a network: some of its decoder's layers, on the same weights.
#include "engine.h"

namespace nartk {

std::shared_ptr<Network> Network::view(const std::vector<std::array<bool, 3>>& computed) const {
    const auto made = std::make_shared<Network>(*this);
    if (output == &biased) made->output = &made->biased;
    std::vector<Layer>& layers = made->decoder.layers;
    if (computed.size() > layers.size())
        throw PassFault("a view of " + number((long long)computed.size()) + " layers, the decoder has " +
                        number((long long)layers.size()));
    layers.resize(computed.size());
    for (size_t i = 0; i < layers.size(); i++) {
        const auto [self, source, ffn] = computed[i];
        layers[i].skips_self = !self;
        layers[i].skips_source = !source;
        layers[i].skips_ffn = !ffn;
    }
    return made;
}

}  // namespace nartk
