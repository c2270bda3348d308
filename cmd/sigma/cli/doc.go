// Package cli is what every command of sigma needs: the flags that all have, a client of the realm
// that they name, answers as tables or JSON, and errors with hints and exit codes.
//
// It knows no command. Package main hands it the table of all (App.Groups). The packages of the
// commands import it, and of what else is below cmd/sigma only term and datadir.
//
// # How a group of commands is added
//
// A group is a package below cmd/sigma, named after its noun, such as fleet. It exports one
// function, which makes its commands:
//
//	// app gives the commands of this package what all commands share.
//	type app struct{ *cli.App }
//
//	// Commands are those of this package.
//	func Commands(base *cli.App) []*cobra.Command {
//		a := &app{base}
//		return []*cobra.Command{newPlanCommand(a), newApplyCommand(a)}
//	}
//
// A line of the table in cmd/sigma/commands.go names it under one of the titles of "sigma help". A
// noun with verbs (sigma fleet apply) is one command, made by Parent. A verb is a file of its
// package:
//
//	func newApplyCommand(a *app) *cobra.Command {
//		return &cobra.Command{
//			Use:     "apply FILE",                  // usage, with the flags that matter
//			Short:   "Make a fleet what FILE says", // one line
//			Long:    `...`,                         // prose
//			Example: `  sigma fleet apply web.yaml`,
//			Args:    cli.Between(1, 1),
//			RunE: func(cmd *cobra.Command, args []string) error {
//				return a.apply(cmd.Context(), args[0])
//			},
//		}
//	}
//
// The method of the same name does the work. It connects (Client, or InRealm in
// RunE). It answers on Out by Listing, PrintList,
// Table or, with --json, PrintJSON. What else people should know it tells by Remark. It returns
// errors: a *sigma.Error, whose hint is printed too; UsageError for a mistake in the command line;
// WithCode for another exit code than 1. Out and Err let no control character through, so that
// names may be printed as they are.
//
// SIGINT and SIGTERM end the context of a command, and a second one the program; OwnSignals and
// TidiesUp mark the commands for which that is not right.
package cli
