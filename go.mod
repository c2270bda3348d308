module sigmaos.dev

go 1.26
