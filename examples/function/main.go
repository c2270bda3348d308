// Command function is a proc that computes one answer and ends: it adds the numbers it is given and
// returns the sum as its status' data.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	ctx := context.Background()
	c, err := sdk.Open(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	c.Exited(ctx, add(os.Args[1:]))
}

func add(args []string) sigma.Status {
	sum := 0
	for _, a := range args {
		n, err := strconv.Atoi(a)
		if err != nil {
			return sigma.Status{Code: sigma.StatusError, Msg: fmt.Sprintf("%q is not a number", a)}
		}
		sum += n
	}
	fmt.Println(sum)
	return sigma.Status{Code: sigma.StatusOK, Data: []byte(strconv.Itoa(sum))}
}
