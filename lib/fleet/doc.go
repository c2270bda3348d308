// Package fleet is the vocabulary of services: a fleet is a directory of endpoints with a policy,
// and a coordinator that keeps as many members as the service needs (002 §3).
//
// A fleet is described by a Spec. The coordinator of the realm (lib/fleet/coordinator, a proc that
// initd keeps) starts members, asks them to go, replaces those that fail, and rolls them to a new
// Spec. A member (lib/fleet/member) says how busy it is and leaves in good order. A client dials
// Members(name) with an sdk.Dialer. Who manages fleets speaks to the coordinator by a Client.
//
// What a realm's tree holds of a fleet:
//
//	/fleet/NAME/spec        the Record: the description in force and how far a roll has come; JSON
//	/fleet/NAME/history     Records that were in force before, oldest first; JSON lines
//	/fleet/NAME/status      the last Status; JSON
//	/fleet/NAME/decisions   what the coordinator decided, oldest first; JSON lines (Decision)
//	/fleet/NAME/members/    the members' endpoints by proc id, and the policy (sdk.Policy)
//	/fleet/.leader          the endpoint of the coordinator that leads
//
// Everything but sizes and loads is among the names, so that a coordinator that takes over needs
// nothing of the one before. The package promises that what it parses is bounded and checked. It
// imports nothing of the kernel: any tenant could have written it.
package fleet
