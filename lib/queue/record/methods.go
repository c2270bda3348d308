package record

import "sigmaos.dev/sdk/call"

// The methods of a queue's server. Each can be called again when its answer was lost: Submit is
// known by the number of the request, Done by the attempt. What an Acquire was given whose answer
// was lost stays held until its lease ends.
var (
	CallSubmit  = method("Submit")
	CallAcquire = method("Acquire")
	CallExtend  = method("Extend")
	CallDone    = method("Done")
	CallResults = method("Results")
	CallWait    = method("Wait")
	CallForget  = method("Forget")
	CallDead    = method("Dead")
	CallRevive  = method("Revive")
	CallDrop    = method("Drop")
	CallStatus  = method("Status")
)

func method(name string) *call.Method { return &call.Method{Name: "sigma.Queue/" + name} }
