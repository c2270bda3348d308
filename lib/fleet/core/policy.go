package core

import (
	"maps"

	"sigmaos.dev/sdk"
)

// tellPolicy has clients told how to choose a member, when that has changed.
func (f *Fleet) tellPolicy() {
	p := f.policy()
	if t := f.told; t != nil && t.Choice == p.Choice && t.Wanted == p.Wanted && maps.Equal(t.Weights, p.Weights) {
		return
	}
	f.told = &p
	f.do(SetPolicy{p})
}

// weightAll is the sum of the weights of all members while there are canaries.
const weightAll = 10_000

// policy is the one that the description asks for. While there are canaries it gives them their
// share of the requests, and before they are known none: a member without a weight gets nothing.
func (f *Fleet) policy() sdk.Policy {
	p := f.record.Spec.Policy
	least, _ := f.record.Spec.Bounds(f.now)
	p.Wanted = p.Wanted || least == 0
	if !f.rolling() || f.passed() {
		return p
	}
	news, olds := f.ready(f.record.Revision), f.ready(f.record.Stable.Revision)
	if len(olds) == 0 {
		return p
	}
	p.Choice, p.Weights = "weights", map[string]uint32{}
	share := f.record.Spec.Update.Canary
	for _, m := range news {
		p.Weights[string(m.Proc)] = max(1, uint32(weightAll*share/float64(len(news))))
	}
	for _, m := range olds {
		p.Weights[string(m.Proc)] = max(1, uint32(weightAll*(1-share)/float64(len(olds))))
	}
	return p
}
