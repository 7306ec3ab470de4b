package main

var indexRootMutants = table{breaks: "./index", tests: ".", rows: []mutant{
	{"rows without pairs", "source.publish", "Pairs: by.variant.Pairs, ", "", "TestScopesAgainstModel"},
}}
