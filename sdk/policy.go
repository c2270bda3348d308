package sdk

import (
	"fmt"

	"sigmaos.dev/sigma"
)

// Policy says how clients choose a member of a directory of endpoints. It stands as JSON in the
// directory's file .policy; without one clients take members in turn.
type Policy struct {
	// Choice is turn, random, two-choices, least, local, hash or weights; "" = turn.
	Choice string `json:"choice,omitempty"`
	// Weights are parts of the connections by name of the member; of the choice weights only.
	Weights map[string]uint32 `json:"weights,omitempty"`
	// Wanted has a client that finds no member make the file .wanted, and wait for one.
	Wanted bool `json:"wanted,omitempty"`
}

// Check returns a KindInvalid error for a choice that there is not.
func (p Policy) Check() error {
	switch p.Choice {
	case "", "turn", "random", "two-choices", "least", "local", "hash", "weights":
		return nil
	}
	return &sigma.Error{Op: "sdk.Policy", Kind: sigma.KindInvalid, Msg: fmt.Sprintf("no choice %.40q", p.Choice),
		Hint: "the choices are turn, random, two-choices, least, local, hash and weights"}
}
