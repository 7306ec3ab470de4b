// What @huggingface/hub finds in a cache, or downloads to it: node hub.js ENDPOINT CACHE COMMIT FILE ...
// With a COMMIT it downloads the files, else the whole snapshot of main.
const hub = require('@huggingface/hub')

async function main([hubUrl, cacheDir, revision, ...paths]) {
  const repo = 'org/m', files = []
  if (revision === '') files.push(await hub.snapshotDownload({ repo, hubUrl, cacheDir }))
  for (const path of paths) {
    files.push(await hub.downloadFileToCacheDir({ repo, hubUrl, cacheDir, revision, path }))
  }
  const scan = await hub.scanCacheDir(cacheDir)
  console.log(JSON.stringify({
    files,
    warnings: scan.warnings.map(String),
    revisions: scan.repos.flatMap(r => r.revisions.map(v => [r.id.name, v.commitOid, ...v.refs].join(' '))),
  }))
}

main(process.argv.slice(2)).catch(err => { console.error(err); process.exit(1) })
