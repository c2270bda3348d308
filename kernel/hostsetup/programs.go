package hostsetup

// BootSet is the programs that the launcher of a machine on its own is told of, sigmad first. A
// user id belongs to each place (docs/internals/launcher-protocol.md), so a new one comes last.
func BootSet() []string {
	return []string{"sigmad", "named", "besched", "s3d", "machined", "dbd", "lcsched"}
}

// ControlSet is those of a further control machine, which has neither objects nor databases.
func ControlSet() []string { return []string{"sigmad", "named", "besched", "machined", "lcsched"} }
