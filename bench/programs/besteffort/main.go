// Command besteffort writes and reads a file of 256 KiB of its realm again and again, for the bench lc-be:
//
//	besteffort SECONDS DIRECTORY
package main

import (
	"context"
	"os"
	"strconv"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	seconds, err := strconv.ParseFloat(os.Args[1], 64)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	c, err := sdk.Open(ctx)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	data := make([]byte, 256<<10)
	path := os.Args[2] + "/" + os.Getenv("SIGMA_PROC_ID")
	for end := time.Now().Add(time.Duration(seconds * float64(time.Second))); time.Now().Before(end); {
		if _, err := c.Put(ctx, path, data, sigma.PutOptions{}); err != nil {
			panic(err)
		}
		if _, _, err := c.Get(ctx, path); err != nil {
			panic(err)
		}
	}
}
