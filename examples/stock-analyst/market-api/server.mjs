// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The demo's market-data API: monthly prices of five companies (the data set "stocks" of vega-datasets), for those
// who have an access token of the authorization server. It verifies tokens as any resource server does: signature
// by the issuer's published keys, issuer, audience, type, expiry and scope.
//
//   GET /prices         → {"symbols": ["AAPL", …]}
//   GET /prices/SYMBOL  → {"symbol": "AAPL", "currency": "USD", "prices": [{"date": "2000-01-01", "price": 25.94}, …]}
//
// Environment: PORT, TLS_CERT, TLS_KEY, ISSUER, RESOURCE, STOCKS_CSV.

import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import https from 'node:https';
import { createRemoteJWKSet, jwtVerify } from 'jose';

const { PORT, TLS_CERT, TLS_KEY, ISSUER, RESOURCE, STOCKS_CSV } = process.env;

const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];
const prices = new Map();
for (const line of fs.readFileSync(STOCKS_CSV, 'utf8').trim().split('\n').slice(1)) {
        const [symbol, date, price] = line.trim().split(',');
        const [month, day, year] = date.split(' ');
        if (!prices.has(symbol))
                prices.set(symbol, []);
        prices.get(symbol).push({
                date: `${year}-${String(MONTHS.indexOf(month) + 1).padStart(2, '0')}-${day.padStart(2, '0')}`,
                price: Number(price),
        });
}

const keys = createRemoteJWKSet(new URL(`${ISSUER}/jwks`));

async function authorize(header) {
        const token = /^Bearer ([\w.-]+)$/.exec(header ?? '')?.[1];
        if (!token)
                throw new Error('no bearer token');
        const { payload } = await jwtVerify(token, keys, {
                issuer: ISSUER, audience: RESOURCE, typ: 'at+jwt', algorithms: ['ES256'], requiredClaims: ['exp', 'client_id'],
        });
        if (payload.scope !== undefined && !payload.scope.split(' ').includes('prices:read'))
                throw new Error('the token is not for prices:read');
        return payload.client_id;
}

function answer(response, status, body, headers = {}) {
        response.writeHead(status, { 'content-type': 'application/json', ...headers });
        response.end(JSON.stringify(body));
}

async function serve(request, response) {
        let client;
        try {
                client = await authorize(request.headers.authorization);
        } catch (error) {
                console.log(`${request.method} ${request.url}: 401, ${error.message}`);
                return answer(response, 401, { error: 'invalid_token' }, { 'www-authenticate': 'Bearer error="invalid_token"' });
        }
        console.log(`${request.method} ${request.url}: client ${client}`);

        const path = new URL(request.url, RESOURCE).pathname;
        if (path === '/prices')
                return answer(response, 200, { symbols: [...prices.keys()].sort() });
        const symbol = /^\/prices\/([A-Z]+)$/.exec(path)?.[1];
        if (!prices.has(symbol))
                return answer(response, 404, { error: 'unknown symbol' });
        return answer(response, 200, { symbol, currency: 'USD', prices: prices.get(symbol) });
}

https.createServer({ cert: fs.readFileSync(TLS_CERT), key: fs.readFileSync(TLS_KEY) }, serve)
        .listen(PORT, '127.0.0.1', () => {
                console.log(`prices of ${prices.size} companies on port ${PORT}`);
                if (process.env.NOTIFY_SOCKET)
                        execFileSync('systemd-notify', ['--ready']);
        });
